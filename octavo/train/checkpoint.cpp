#include "octavo/train/checkpoint.h"

#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "octavo/nn/parameters.h"
#include "octavo/train/durable_file.h"
#include "octavo/train/json_file.h"

namespace octavo::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormatName = "octavo checkpoint";
constexpr std::int64_t kFormatVersion = 1;
constexpr const char* kTemporaryPrefix = ".tmp-";
constexpr const char* kRngName = "rng.cpu";  // in optimizer.safetensors, beside "<parameter>.*"

fs::path checkpoints_folder(const fs::path& run_dir) { return run_dir / "checkpoints"; }

std::string step_name(std::int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return name;
}

// The checkpoints in a folder by step. Only renames make names of this form, so what has one was
// whole; a damaged one is in the list too, for whoever reads it to say so.
std::map<std::int64_t, fs::path> list_checkpoints(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
    if (digits.empty() || digits.size() > 18 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    std::error_code ignored;
    if (fs::is_directory(it->path(), ignored)) found[std::stoll(digits)] = it->path();
  }
  TORCH_CHECK(!error || error == std::errc::no_such_file_or_directory, "checkpoints: cannot list ",
              folder.string(), ": ", error.message(),
              "; mend its permissions, or name another run_dir");
  return found;
}

void remove_temporary_folders(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kTemporaryPrefix))
      leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

// A checkpoint that is half removed when the process dies must not look whole.
void remove_checkpoint(const fs::path& path) {
  const fs::path doomed = path.parent_path() / (kTemporaryPrefix + path.filename().string());
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(path, doomed, error);
  fs::remove_all(error ? path : doomed, error);
}

void publish(const fs::path& temporary, const fs::path& final_path) {
  if (fs::exists(final_path)) {
    // Exchanging leaves no moment without a checkpoint of this step; afterwards `temporary` holds
    // the old one. File systems without the exchange lose this step's old checkpoint first.
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) ==
        0)
      return;
    remove_checkpoint(final_path);
  }
  std::error_code error;
  fs::rename(temporary, final_path, error);
  TORCH_CHECK(!error, "cannot rename ", temporary.string(), " to ", final_path.string(), ": ",
              error.message(), "; check the folder and its permissions");
}

// The folder that holds state.json, for a checkpoint's, a run's or a checkpoints/ folder.
fs::path find_checkpoint(const fs::path& path) {
  TORCH_CHECK(fs::exists(path), "checkpoint ", path.string(),
              ": no such folder; give a run's folder or one of its checkpoints/step-*");
  TORCH_CHECK(fs::is_directory(path), "checkpoint ", path.string(),
              ": is a file; give the folder of a checkpoint or of a run");
  if (fs::exists(path / "state.json")) return path;
  for (const fs::path& folder : {checkpoints_folder(path), path}) {
    const auto found = list_checkpoints(folder);
    if (!found.empty()) return found.rbegin()->second;
  }
  TORCH_CHECK(false, "checkpoint ", path.string(),
              ": holds no checkpoint of octavo (no state.json, no checkpoints/step-*); give the "
              "folder of a run that has saved one");
}

CheckpointState read_state(const fs::path& folder) {
  const fs::path path = folder / "state.json";
  const JsonResult read = read_json(path);
  TORCH_CHECK(read, path.string(), ": ", read.error,
              "; it is missing, truncated or not octavo's: use an older checkpoint");
  const json& state = read.value;
  const auto integer = [&](const char* key) {
    return state.contains(key) && state[key].is_number_integer();
  };
  TORCH_CHECK(state.is_object() && state.value("format", json()) == kFormatName &&
                  integer("version") && integer("step") && integer("data_position") &&
                  state.contains("config") && state["config"].is_object(),
              path.string(), " is truncated or not octavo's; use an older checkpoint");
  TORCH_CHECK(state["version"] == kFormatVersion, path.string(), ": checkpoint version ",
              state["version"].dump(), ", this octavo reads version ", kFormatVersion,
              "; use the octavo that wrote it");
  CheckpointState result;
  result.step = state["step"].get<std::int64_t>();
  result.data_position = state["data_position"].get<std::int64_t>();
  std::vector<ConfigSetting> settings;
  for (const auto& [key, value] : state["config"].items())
    settings.push_back({key, value.dump(), path.string()});
  result.config = make_config(settings);
  const std::string name = folder.filename().string();
  TORCH_CHECK(result.step >= 0 && result.step <= result.config.steps &&
                  (!name.starts_with("step-") || name == step_name(result.step)),
              path.string(), ": step ", state["step"].dump(), " of ", result.config.steps,
              " does not fit the folder's name; it is damaged or renamed: use another checkpoint");
  return result;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

}  // namespace

void save_checkpoint(const fs::path& run_dir, const CheckpointState& state) {
  const fs::path folder = checkpoints_folder(run_dir);
  std::error_code error;
  fs::create_directories(folder, error);
  TORCH_CHECK(!error, "cannot make the folder ", folder.string(), ": ", error.message(),
              "; check run_dir and free space");
  remove_temporary_folders(folder);  // first: they may hold the space that is missing
  const fs::path final_path = folder / step_name(state.step);
  const fs::path temporary = folder / (kTemporaryPrefix + step_name(state.step) + "-writing");
  try {
    fs::create_directory(temporary, error);
    TORCH_CHECK(!error, "cannot make the folder ", temporary.string(), ": ", error.message(),
                "; check the folder above it and free space");
    // "format" is what Hugging Face's loaders ask for.
    write_safetensors(temporary / "model.safetensors", state.parameters, {{"format", "pt"}});
    NamedTensors optimizer = state.optimizer;
    if (state.rng.defined()) optimizer.emplace_back(kRngName, state.rng);
    write_safetensors(temporary / "optimizer.safetensors", optimizer);
    const nlohmann::ordered_json description = {
        {"format", kFormatName},
        {"version", kFormatVersion},
        {"step", state.step},
        {"data_position", state.data_position},
        {"config", nlohmann::ordered_json::parse(to_json(state.config))}};
    DurableFile file(temporary / "state.json");
    file.write(description.dump(2) + "\n");
    file.close();
    sync_directory(temporary);
    publish(temporary, final_path);
  } catch (const c10::Error& failure) {
    fs::remove_all(temporary, error);
    const auto older = newest_checkpoint(run_dir);
    TORCH_CHECK(false, "checkpoint of step ", state.step,
                " not saved: ", failure.what_without_backtrace(), " (",
                older ? "the newest whole one is " + older->string() : "there is none yet", ")");
  }
  sync_directory(folder);
  fs::remove_all(temporary, error);  // after an exchange: the checkpoint this one replaced
  auto found = list_checkpoints(folder);
  // A folder that only has the name of one is not octavo's to remove.
  std::erase_if(found, [](const auto& entry) {
    std::error_code ignored;
    return !fs::exists(entry.second / "state.json", ignored);
  });
  while (static_cast<std::int64_t>(found.size()) > state.config.keep_checkpoints) {
    // A run started anew in an old folder must not lose what it has just saved.
    auto oldest = found.begin();
    if (oldest->first == state.step) break;
    remove_checkpoint(oldest->second);
    found.erase(oldest);
  }
}

CheckpointState load_checkpoint_model(const fs::path& path) {
  const fs::path folder = find_checkpoint(path);
  CheckpointState state = read_state(folder);
  state.parameters = SafetensorsFile(folder / "model.safetensors").tensors();
  return state;
}

CheckpointState load_checkpoint(const fs::path& path) {
  const fs::path folder = find_checkpoint(path);
  CheckpointState state = load_checkpoint_model(folder);
  for (auto& named : SafetensorsFile(folder / "optimizer.safetensors").tensors()) {
    if (named.first == kRngName) {
      state.rng = named.second;
    } else {
      state.optimizer.push_back(std::move(named));
    }
  }
  return state;
}

std::string steps_text(const Checkpoints& checkpoints) {
  std::string text;
  for (const auto& [step, path] : checkpoints)
    text += (text.empty() ? "" : ", ") + std::to_string(step);
  return text;
}

Checkpoints checkpoints_of(const fs::path& run_dir) {
  return list_checkpoints(checkpoints_folder(run_dir));
}

std::optional<fs::path> newest_checkpoint(const fs::path& run_dir) {
  const auto found = checkpoints_of(run_dir);
  if (found.empty()) return std::nullopt;
  return found.rbegin()->second;
}

void remove_checkpoints_after(const fs::path& run_dir, std::int64_t step) {
  for (const auto& [later, path] : checkpoints_of(run_dir))
    if (later > step) remove_checkpoint(path);
}

NamedTensors module_parameters(const torch::nn::Module& module) {
  NamedTensors parameters;
  for (const auto& [name, tensor] : nn::unique_parameters(module))
    parameters.emplace_back(name, tensor);
  return parameters;
}

void load_parameters(torch::nn::Module& module, const NamedTensors& parameters) {
  std::map<std::string, at::Tensor> given(parameters.begin(), parameters.end());
  TORCH_CHECK(given.size() == parameters.size(), "parameters: a name is given twice");
  const NamedTensors wanted = module_parameters(module);
  std::map<std::string, at::Tensor> aliases;  // every name, second names of tied tensors too
  for (const auto& item : module.named_parameters()) aliases[item.key()] = item.value();

  std::vector<std::string> missing, unexpected;
  std::map<const c10::TensorImpl*, at::Tensor> source;
  for (const auto& [name, parameter] : wanted) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.push_back(name);
      continue;
    }
    const at::Tensor& value = found->second;
    TORCH_CHECK(value.sizes() == parameter.sizes() && value.dtype() == parameter.dtype(),
                "parameters: ", name, " is ", value.sizes(), " ", value.dtype(),
                " in the checkpoint, the model's is ", parameter.sizes(), " ", parameter.dtype(),
                "; give the sizes and dtype it was trained with");
    source[parameter.unsafeGetTensorImpl()] = value;
  }
  for (const auto& [name, value] : given) {
    const auto alias = aliases.find(name);
    if (alias == aliases.end()) {
      unexpected.push_back(name);
      continue;
    }
    const auto tied = source.find(alias->second.unsafeGetTensorImpl());
    TORCH_CHECK(tied == source.end() || tied->second.is_same(value) ||
                    (tied->second.dtype() == value.dtype() && at::equal(tied->second, value)),
                "parameters: ", name,
                " is tied to another tensor but has other values; "
                "train with tied_head false");
  }
  TORCH_CHECK(missing.empty() && unexpected.empty(), "parameters do not fit the model: ",
              missing.empty() ? "" : "missing " + listed(missing),
              missing.empty() || unexpected.empty() ? "" : "; ",
              unexpected.empty() ? "" : "unexpected " + listed(unexpected),
              "; give the sizes it was trained with");
  at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : wanted)
    at::Tensor(parameter).copy_(source[parameter.unsafeGetTensorImpl()]);
}

}  // namespace octavo::train
