// Signals as a flag. A second one ends the process at once.
#include "interruption.h"

#include <csignal>
#include <cstdlib>

namespace llama {
namespace {

volatile std::sig_atomic_t asked = 0;

void note(int signal) {
  asked = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interruption::Interruption(bool is_wanted) : is_wanted_(is_wanted) {
  if (!is_wanted_) return;
  asked = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

Interruption::~Interruption() {
  if (!is_wanted_) return;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interruption::was_asked_for() { return asked != 0; }

void Interruption::end_process() {
  std::signal(asked, SIG_DFL);
  std::raise(asked);
  std::abort();  // the signal was blocked
}

}  // namespace llama
