#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octavo/models/llama_config.h"
#include "octavo/train/safetensors.h"

namespace octavo::train {

/// The tensors of a Hugging Face folder by name: model.safetensors, or the files that
/// model.safetensors.index.json names. Opening reads every file's header, so a truncated file is an
/// error before anything is done with another.
/// Errors, naming the file (and the tensor where it is about one): neither file there; an index
/// that is damaged, names files that are not there or tensors that are not in them;
/// SafetensorsFile's.
class HuggingFaceTensors {
 public:
  explicit HuggingFaceTensors(const std::filesystem::path& folder);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return files_.count(name) != 0; }
  /// On the CPU, sharing the file's mapping.
  at::Tensor tensor(const std::string& name) const;
  /// The file that holds it, for messages.
  std::string file_of(const std::string& name) const;

 private:
  struct File {
    std::string path;
    std::unique_ptr<SafetensorsFile> safetensors;
  };
  std::map<std::string, std::shared_ptr<File>> files_;  // by tensor
};

/// Our parameters by the names that weights of `model_type` have: views, so that copying into them
/// loads and writing them exports. Experts are stacked here and tensors of their own there;
/// everything else has the same shape and, but for routers and shared experts, the same name.
NamedTensors hugging_face_views(const NamedTensors& parameters, const std::string& model_type);

/// Copies the folder's weights into `parameters` (names as module_parameters() gives them; any
/// subset of a model's), converting between fp32, bf16 and fp16 with one rounding. Errors: a tensor
/// that is missing, has another shape than config.json says, or another kind of dtype, naming file
/// and tensor.
void load_hugging_face_weights(const HuggingFaceTensors& tensors, const std::string& model_type,
                               const NamedTensors& parameters);

/// An error that lists the tensors of the folder that no parameter of the model takes: `parameters`
/// are all of them. Tables of angles that old files carry, and a tied head's second copy where it
/// has the embedding's values, are no error.
void check_no_others(const HuggingFaceTensors& tensors, const std::string& model_type,
                     const NamedTensors& parameters);

/// What an exported folder is made of.
struct HuggingFaceExport {
  models::LlamaConfig model;
  NamedTensors parameters;                            ///< as module_parameters() gives them
  at::ScalarType dtype = at::kFloat;                  ///< of the files: fp32, bf16 or fp16
  std::int64_t max_shard_bytes = 5'000'000'000;       ///< of one file's tensors
  std::vector<std::filesystem::path> copied_files;    ///< a tokenizer's, as they are
  std::map<std::string, std::string> token_ids_json;  ///< "eos_token_id" -> "2": into config.json
};

/// Writes `folder`: config.json and model.safetensors, or model-00001-of-0000N.safetensors with an
/// index where the tensors are more than max_shard_bytes (a tensor larger than that has a file of
/// its own). Whole or not at all: into a folder beside it with a temporary name, flushed to the
/// disk, then renamed.
/// Errors: a folder that is there and not empty; a model that no model type expresses; a failed
/// write, naming the file and the reason, after which nothing is left.
void export_hugging_face(const std::filesystem::path& folder, const HuggingFaceExport& what);

}  // namespace octavo::train
