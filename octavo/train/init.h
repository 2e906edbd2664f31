#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/train/config.h"
#include "octavo/train/optimizer.h"

// The key `init`: a Hugging Face folder, or an Octavo run or checkpoint, whose weights training
// begins with.
namespace octavo::train {

/// The model keys as the folder's config.json or state.json has them, for make_config() to take
/// before the settings that the user gave. Errors: neither file there;
/// read_hugging_face_config()'s.
std::vector<ConfigSetting> init_settings(const std::filesystem::path& folder);

/// Copies the folder's weights into the model and, where there are any, the optimiser's masters
/// (from a checkpoint with masters, those; otherwise the file's values before they are rounded to
/// the model's dtype). Returns a line for the log. Errors, naming file and tensor: what is missing,
/// superfluous, of another shape, damaged.
std::string load_init(const std::filesystem::path& folder, models::Llama& model, AdamW& optimizer);

/// A checkpoint's parameters, each by its fp32 master where there is one.
NamedTensors checkpoint_values(const std::filesystem::path& folder, TrainConfig& config);

}  // namespace octavo::train
