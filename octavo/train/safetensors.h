#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace octavo::train {

/// Tensors with unique names, in an order that files keep.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes a safetensors file (format 0.x of Hugging Face, https://huggingface.co/docs/safetensors):
/// 8 bytes little-endian header length, a JSON header padded with spaces so that the data starts at
/// a multiple of 64, then the tensors back to back, each starting at a multiple of its element size
/// (larger element sizes first, as the reference implementation does).
///
/// Any strides and any device (copied to the CPU, one tensor at a time); sizes of 0 and 0-d too.
/// dtypes: fp64, fp32, bf16, fp16, the FP8 types (F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ,
/// F8_E5M2FNUZ), int64, int32, int16, int8, uint8, bool.
/// The file is flushed to the disk (fsync) before this returns. A failed write is an error that
/// names the file and the reason ("No space left on device"); what was written so far is removed.
/// Errors: a name given twice, a dtype without a name in the format, a file that cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// A safetensors file, memory-mapped: opening reads the header only.
/// Truncated and foreign files are errors of one line that name the file, what is wrong and the
/// repair; every offset is checked before anything is read through it.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    at::ScalarType dtype;
    std::vector<std::int64_t> sizes;
    std::uint64_t begin;  ///< bytes from the start of the data
    std::uint64_t end;
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<Entry>& entries() const { return entries_; }  ///< in the order of the data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The tensor of that name, on the CPU. It shares the mapping (private: writing to it never
  /// changes the file) and keeps it alive. A tensor whose data is not aligned to its element size
  /// is copied. An unknown name is an error naming the nearest.
  at::Tensor tensor(const std::string& name) const;

  /// All tensors, sharing the mapping.
  NamedTensors tensors() const;

 private:
  at::Tensor tensor_of(const Entry& entry) const;

  std::string path_;
  std::shared_ptr<std::uint8_t> mapping_;
  std::uint64_t data_start_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace octavo::train
