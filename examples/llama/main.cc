// meshtorch-llama: a Llama on a mesh of ranks, from the command line.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "commands.h"
#include "meshtorch/version.h"

namespace {

constexpr int kUsageError = 2;

constexpr const char* kFooter =
    R"(Models are directories in Hugging Face's format: config.json and model.safetensors, or
model.safetensors.index.json and the files that it names. The ranks are threads of this process:
  meshtorch-llama generate --model DIR --ids 1,5,7 --greedy --tp 2
or, under a launcher, processes:
  meshtorch-run -n 2 meshtorch-llama generate --model DIR --ids 1,5,7 --greedy --tp 2
Exit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong options.)";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs Llama models on a mesh of ranks: tensor parallel (tp), data parallel (dp) and context parallel "
      "(cp).",
      "meshtorch-llama");
  app.footer(kFooter);
  app.set_version_flag("--version", "meshtorch-llama " MESHTORCH_VERSION);
  app.require_subcommand(1);
  llama::add_train(app);
  llama::add_generate(app);
  llama::add_logits(app);
  llama::add_inspect(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "meshtorch-llama: " << error.what() << "\n";
    return 1;
  }
}
