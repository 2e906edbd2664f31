// The octavo command. Exit codes: 0 done, 1 an error (one line on stderr that says what to do),
// 2 a usage error, 130 a run stopped by SIGINT or SIGTERM after saving.

#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <new>

#include "apps/octavo/command.h"
#include "octavo/recipe/nearest.h"

namespace octavo::app {
namespace {

constexpr const char* kDescription =
    "FP8 training of language models.\n\n"
    "Examples:\n"
    "  octavo train --config examples/configs/demo.json --recipe rowwise --run-dir runs/first\n"
    "  octavo eval runs/first --eval-recipe high_precision\n"
    "  octavo generate runs/first --prompt 'ROMEO:'\n"
    "  octavo export runs/first exported\n"
    "  octavo compare --config examples/configs/demo.json --run-dir runs/compared\n"
    "  octavo inspect llama3-8b --recipe rowwise\n";

/// Messages of LibTorch run over several lines; the command's errors are one.
std::string one_line(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c != '\n' && c != '\r') {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

int fail(int code, const std::string& message) {
  std::cout.flush();
  std::fprintf(stderr, "octavo: %s\n", one_line(message).c_str());
  return code;
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string command = "octavo";
  const CLI::App* asked = &app;
  while (!asked->get_subcommands().empty()) {
    asked = asked->get_subcommands().front();
    command += " " + asked->get_name();
  }
  std::string message = error.what();
  if (const std::size_t at = message.find(": At Most 1 required"); at != std::string::npos)
    message = message.substr(0, at) + ": given more than once; keep one";
  // A misspelt command is missing and left over at once.
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || (missing && !extras.empty())) {
    const std::string first = extras.empty() ? "" : extras.front();
    const std::string name = first.substr(0, first.find('='));
    if (first.starts_with("-")) {
      message = "unknown option " + name + did_you_mean(name, option_names(app));
    } else if (const auto known = asked->get_subcommands(nullptr); !known.empty()) {
      std::vector<std::string> names;
      for (const CLI::App* sub : known) names.push_back(sub->get_name());
      message = "unknown command " + first + did_you_mean(first, names);
    } else {
      message = "unexpected argument " + first;
    }
  }
  return fail(2, message + "; see " + command + " --help");
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "octavo");
  app.set_version_flag("--version", std::string("octavo ") + OCTAVO_VERSION,
                       "print the version and exit");
  app.get_formatter()->column_width(44);
  add_train_command(app);
  add_compare_command(app);
  add_eval_command(app);
  add_generate_command(app);
  add_export_command(app);
  add_inspect_command(app);
  add_recipes_command(app);
  add_bench_command(app);
  add_baseline_command(app);
  app.require_subcommand(0, 1);
  std::vector<std::string> arguments = normalise_arguments(argc, argv);
  if (arguments.empty()) {
    std::cout << app.help();
    return 0;
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::RuntimeError& stop) {  // a command's own exit code
    return stop.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  return 0;
}

int guarded_run(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const std::size_t bytes = text.find("you tried to allocate ");  // LibTorch's CPU allocator
    if (bytes == std::string::npos) return fail(1, text);
    return fail(1, "out of memory: " + text.substr(bytes + 10) +
                       "; make batch, sequence or the model smaller");
  } catch (const std::bad_alloc&) {
    return fail(1, "out of memory; make batch, sequence or the model smaller");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}

}  // namespace
}  // namespace octavo::app

int main(int argc, char** argv) {
  // A file-size limit then fails the write, which is reported, instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = octavo::app::guarded_run(argc, argv);
  std::cout.flush();
  if (code == 0 && (!std::cout || std::fflush(stdout) != 0))
    return octavo::app::fail(1, "cannot write to the standard output; free some space");
  return code;
}
