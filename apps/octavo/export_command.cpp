#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/octavo/command.h"
#include "octavo/train/hugging_face_config.h"
#include "octavo/train/hugging_face_weights.h"
#include "octavo/train/init.h"
#include "octavo/train/json_file.h"
#include "octavo/train/metrics.h"

namespace octavo::app {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string checkpoint, folder;
  std::string dtype = "trained";
  std::string max_shard_size = "5GB";
  std::string like;
};

// "5GB" -> 5e9, "300MiB" -> 300 * 2^20, as huggingface_hub reads sizes.
std::int64_t parse_bytes(const std::string& text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = text.substr(end);
  const std::map<std::string, double> units = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double value = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + end, value);
  const bool good = error == std::errc() && stopped == text.data() + end && units.count(unit) != 0;
  if (!good || !(value * units.at(unit) >= 1) || value * units.at(unit) > 0x1p62)
    throw CLI::ValidationError(
        "--max-shard-size",
        "expected a size such as 5GB, 500MB or 2GiB, got " + quoted_value(text));
  return static_cast<std::int64_t>(value * units.at(unit));
}

// What the tokenizer of `folder` is made of, and the token ids of its config.json.
void add_tokenizer(const fs::path& folder, train::HuggingFaceExport& what) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt",
                           "generation_config.json", "chat_template.jinja"}) {
    if (fs::exists(folder / name)) what.copied_files.push_back(folder / name);
  }
  const train::JsonResult config = train::read_json(folder / "config.json");
  if (!config || !config.value.is_object()) return;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.value.contains(key)) what.token_ids_json[key] = config.value[key].dump();
}

void export_model(const ExportOptions& options) {
  train::HuggingFaceExport what;
  what.max_shard_bytes = parse_bytes(options.max_shard_size);
  train::TrainConfig config;
  what.parameters = train::checkpoint_values(options.checkpoint, config);
  what.model = config.model;
  const std::string dtype = options.dtype == "trained" ? config.dtype : options.dtype;
  what.dtype = dtype == "float32" ? at::kFloat : dtype == "bfloat16" ? at::kBFloat16 : at::kHalf;
  if (!options.like.empty()) {
    TORCH_CHECK(fs::exists(fs::path(options.like) / "config.json"), "--like: ", options.like,
                " holds no config.json; give a Hugging Face folder");
    add_tokenizer(options.like, what);
  } else if (!config.init.empty() && fs::exists(fs::path(config.init) / "config.json")) {
    add_tokenizer(config.init, what);
  }
  train::export_hugging_face(options.folder, what);
  std::int64_t count = 0;
  for (const auto& [name, parameter] : what.parameters) count += parameter.numel();
  std::cout << "exported " << train::with_commas(count) << " parameters in " << dtype << " as "
            << train::hugging_face_type(what.model) << " to " << options.folder;
  for (const fs::path& path : what.copied_files)
    std::cout << (path == what.copied_files.front() ? ", with " : ", ") << path.filename().string();
  std::cout << std::endl;
}

}  // namespace

void add_export_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "export", "write a checkpoint as a Hugging Face folder: config.json and safetensors");
  const auto options = std::make_shared<ExportOptions>();
  command->add_option("CHECKPOINT", options->checkpoint, "a checkpoint's folder or a run's")
      ->required();
  command->add_option("DIR", options->folder, "the folder to make; it must not be there")
      ->required();
  command
      ->add_option("--dtype", options->dtype,
                   "of the weights: float32, bfloat16, float16, or as trained (from fp32 masters "
                   "where the run has them)")
      ->check(CLI::IsMember({"trained", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", options->max_shard_size,
                   "largest file: 5GB, 500MB, 2GiB; more makes several and an index")
      ->type_name("SIZE")
      ->capture_default_str();
  command
      ->add_option("--like", options->like,
                   "a Hugging Face folder whose tokenizer and token ids to copy; by default the "
                   "one that training began with")
      ->type_name("DIR");
  command->callback([options] { export_model(*options); });
}

}  // namespace octavo::app
