// The subcommands of meshtorch-llama, one file each: a function declares the options and what runs when it is
// chosen.
#pragma once

namespace CLI {
class App;
}

namespace llama {

void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_logits(CLI::App& app);
void add_inspect(CLI::App& app);

}  // namespace llama
