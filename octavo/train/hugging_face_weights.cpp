#include "octavo/train/hugging_face_weights.h"

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "octavo/recipe/nearest.h"
#include "octavo/train/durable_file.h"
#include "octavo/train/hugging_face_config.h"
#include "octavo/train/json_file.h"

namespace octavo::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool replace_first(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown)));
  return join(shown) + (names.size() > kShown
                            ? " and " + std::to_string(names.size() - kShown) + " more"
                            : std::string());
}

}  // namespace

HuggingFaceTensors::HuggingFaceTensors(const fs::path& folder) {
  const auto open = [](const fs::path& path) {
    return std::make_shared<File>(File{path.string(), std::make_unique<SafetensorsFile>(path)});
  };
  if (!fs::exists(folder / kIndex)) {
    TORCH_CHECK(fs::exists(folder / kWeights), folder.string(), ": holds neither ", kWeights,
                " nor ", kIndex,
                fs::exists(folder / "pytorch_model.bin")
                    ? "; save the model again with safe_serialization=True"
                    : "; give a Hugging Face folder with weights in safetensors");
    const auto file = open(folder / kWeights);
    for (const auto& entry : file->safetensors->entries()) files_[entry.name] = file;
    return;
  }
  const fs::path index = folder / kIndex;
  const JsonResult read = read_json(index);
  TORCH_CHECK(read && read.value.is_object() && read.value.contains("weight_map") &&
                  read.value["weight_map"].is_object(),
              index.string(), ": ", read ? "holds no \"weight_map\"" : read.error,
              "; copy it again");
  std::map<std::string, std::shared_ptr<File>> by_name;
  for (const auto& [name, value] : read.value["weight_map"].items()) {
    TORCH_CHECK(value.is_string() && !value.get<std::string>().empty() &&
                    fs::path(value.get<std::string>()).filename() == value.get<std::string>(),
                index.string(), ": \"", name, "\" is in ", value.dump(),
                "; expected the name of a file beside it: copy it again");
    const std::string file = value.get<std::string>();
    auto& opened = by_name[file];
    if (!opened) {
      TORCH_CHECK(fs::exists(folder / file), index.string(), ": names ", file,
                  ", which is not there; copy the whole folder");
      opened = open(folder / file);
    }
    files_[name] = opened;
  }
  for (const auto& [name, file] : files_) {
    const auto& entries = file->safetensors->entries();
    TORCH_CHECK(std::any_of(entries.begin(), entries.end(),
                            [&](const auto& entry) { return entry.name == name; }),
                index.string(), ": tensor \"", name, "\" is not in ", file->path,
                "; copy that file and the index again");
  }
}

std::vector<std::string> HuggingFaceTensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

at::Tensor HuggingFaceTensors::tensor(const std::string& name) const {
  return files_.at(name)->safetensors->tensor(name);
}

std::string HuggingFaceTensors::file_of(const std::string& name) const {
  return files_.at(name)->path;
}

NamedTensors hugging_face_views(const NamedTensors& parameters, const std::string& model_type) {
  const bool mixtral = model_type == "mixtral";
  const std::string block = mixtral ? ".block_sparse_moe." : ".mlp.";
  NamedTensors views;
  for (const auto& [ours, tensor] : parameters) {
    std::string name = ours;
    if (!replace_first(name, ".moe.", block)) {
      views.emplace_back(name, tensor);
      continue;
    }
    replace_first(name, ".router.expert_bias", ".gate.e_score_correction_bias");
    replace_first(name, ".router.gate.", ".gate.");
    replace_first(name, ".shared_expert.", ".shared_experts.");
    const std::size_t stacked = name.find(".experts.gate_up_proj");
    const std::size_t stacked_down = name.find(".experts.down_proj");
    const std::string before = name.substr(0, std::min(stacked, stacked_down)) + ".experts.";
    if (stacked == std::string::npos && stacked_down == std::string::npos) {
      views.emplace_back(name, tensor);
      continue;
    }
    for (std::int64_t expert = 0; expert < tensor.size(0); ++expert) {
      const std::string prefix = before + std::to_string(expert) + ".";
      const at::Tensor one = tensor.select(0, expert);
      if (stacked_down != std::string::npos) {
        views.emplace_back(prefix + (mixtral ? "w2" : "down_proj") + ".weight", one);
        continue;
      }
      const std::int64_t hidden = one.size(0) / 2;
      views.emplace_back(prefix + (mixtral ? "w1" : "gate_proj") + ".weight",
                         one.narrow(0, 0, hidden));
      views.emplace_back(prefix + (mixtral ? "w3" : "up_proj") + ".weight",
                         one.narrow(0, hidden, hidden));
    }
  }
  return views;
}

void load_hugging_face_weights(const HuggingFaceTensors& tensors, const std::string& model_type,
                               const NamedTensors& parameters) {
  const c10::NoGradGuard no_grad;
  const NamedTensors views = hugging_face_views(parameters, model_type);
  std::vector<std::string> missing;
  for (const auto& [name, view] : views)
    if (!tensors.contains(name)) missing.push_back(name);
  TORCH_CHECK(missing.empty(), "init: the folder has no tensor ", first_names(missing),
              did_you_mean(missing.front(), tensors.names()),
              "; its config.json says there are: give the one that came with the weights, and no "
              "sizes of your own");
  for (const auto& [name, view] : views) {
    const at::Tensor source = tensors.tensor(name);
    const at::ScalarType dtype = source.scalar_type();
    TORCH_CHECK(source.sizes() == view.sizes(), tensors.file_of(name), ": tensor \"", name,
                "\" is ", source.sizes(), ", config.json's sizes make it ", view.sizes(),
                "; give the config.json that came with the weights, and no sizes of your own");
    TORCH_CHECK(
        dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble,
        tensors.file_of(name), ": tensor \"", name, "\" is ", dtype,
        "; octavo begins with weights in fp32, bf16 or fp16: convert them");
    view.copy_(source);
  }
}

void check_no_others(const HuggingFaceTensors& tensors, const std::string& model_type,
                     const NamedTensors& parameters) {
  std::map<std::string, at::Tensor> taken;
  for (const auto& [name, view] : hugging_face_views(parameters, model_type)) taken[name] = view;
  std::vector<std::string> others;
  for (const std::string& name : tensors.names()) {
    if (taken.count(name) != 0 || name.ends_with("rotary_emb.inv_freq")) continue;
    if (name == "lm_head.weight" &&
        at::equal(tensors.tensor(name), tensors.tensor("model.embed_tokens.weight")))
      continue;
    others.push_back(name);
  }
  TORCH_CHECK(others.empty(), "init: the model has no place for ", first_names(others), " of ",
              tensors.file_of(others.front()),
              others.front() == "lm_head.weight"
                  ? "; it differs from the embedding: give tie_word_embeddings false in config.json"
                  : "; give the config.json that came with the weights, and no sizes of your own");
}

void export_hugging_face(const fs::path& folder, const HuggingFaceExport& what) {
  const std::string type = hugging_face_type(what.model);
  std::error_code error;
  TORCH_CHECK(!fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder, error)),
              "export: ", folder.string(), " is there already; name another folder or remove it");
  const c10::NoGradGuard no_grad;
  const bool fp32 = what.dtype == at::kFloat;
  NamedTensors tensors = hugging_face_views(what.parameters, type);
  // Each file's tensors, in the model's order.
  std::vector<NamedTensors> shards(1);
  std::int64_t filled = 0, total = 0;
  const auto bytes_of = [&](const auto& named) {
    // The router's bias is fp32 in every model; a rounded one would choose other experts.
    const bool keeps = named.first.ends_with("e_score_correction_bias");
    return named.second.numel() * std::int64_t(c10::elementSize(keeps ? at::kFloat : what.dtype));
  };
  for (const auto& named : tensors) {
    const std::int64_t bytes = bytes_of(named);
    if (filled > 0 && filled + bytes > what.max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(named);
    filled += bytes;
    total += bytes;
  }

  const fs::path absolute = fs::absolute(folder).lexically_normal();
  const fs::path parent =
      absolute.has_filename() ? absolute.parent_path() : absolute.parent_path().parent_path();
  const fs::path name =
      absolute.has_filename() ? absolute.filename() : absolute.parent_path().filename();
  const fs::path temporary =
      parent / ("." + name.string() + ".writing-" + std::to_string(::getpid()));
  try {
    fs::create_directories(temporary, error);
    TORCH_CHECK(!error, "cannot make the folder ", temporary.string(), ": ", error.message(),
                "; check the folder above it and free space");
    ordered_json config = hugging_face_config(what.model, fp32                      ? "float32"
                                                          : what.dtype == at::kHalf ? "float16"
                                                                                    : "bfloat16");
    for (const auto& [key, value] : what.token_ids_json) config[key] = ordered_json::parse(value);
    const auto write_text = [&](const char* file_name, const std::string& text) {
      DurableFile file(temporary / file_name);
      file.write(text);
      file.close();
    };
    ordered_json weight_map = ordered_json::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      char shard_name[64] = "model.safetensors";
      if (shards.size() > 1)
        std::snprintf(shard_name, sizeof shard_name, "model-%05zu-of-%05zu.safetensors", i + 1,
                      shards.size());
      NamedTensors converted;  // one file's at a time
      for (const auto& [tensor_name, tensor] : shards[i]) {
        const bool keeps = tensor_name.ends_with("e_score_correction_bias");
        converted.emplace_back(tensor_name, tensor.to(keeps ? at::kFloat : what.dtype));
        weight_map[tensor_name] = shard_name;
      }
      write_safetensors(temporary / shard_name, converted, {{"format", "pt"}});
    }
    if (shards.size() > 1) {
      const ordered_json index = {{"metadata", {{"total_size", total}}},
                                  {"weight_map", weight_map}};
      write_text(kIndex, index.dump(2) + "\n");
    }
    for (const fs::path& path : what.copied_files) {
      fs::copy_file(path, temporary / path.filename(), error);
      TORCH_CHECK(!error, "cannot copy ", path.string(), " to ", temporary.string(), ": ",
                  error.message(), "; check its permissions and free space");
    }
    write_text("config.json", config.dump(2) + "\n");
    sync_directory(temporary);
    fs::rename(temporary, parent / name, error);
    TORCH_CHECK(!error, "cannot rename ", temporary.string(), " to ", folder.string(), ": ",
                error.message(), "; check the folder above it");
    sync_directory(parent);
  } catch (const c10::Error& failure) {
    fs::remove_all(temporary, error);
    TORCH_CHECK(false, "export: ", folder.string(),
                " not written: ", failure.what_without_backtrace());
  }
}

}  // namespace octavo::train
