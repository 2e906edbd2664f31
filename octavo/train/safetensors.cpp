#include "octavo/train/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "octavo/recipe/nearest.h"
#include "octavo/train/durable_file.h"
#include "octavo/train/json_file.h"

namespace octavo::train {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kAlignment = 64;
// The reference implementation's limit; a foreign file's first 8 bytes usually exceed it.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr DtypeName kDtypes[] = {
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
};

const char* name_of(at::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes)
    if (entry.dtype == dtype) return entry.name;
  return nullptr;
}

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  for (const DtypeName& entry : kDtypes)
    if (name == entry.name) return entry.dtype;
  return std::nullopt;
}

// Elements of the sizes times bytes per element; none when negative or beyond 64 bits.
std::optional<std::uint64_t> byte_count(const std::vector<std::int64_t>& sizes,
                                        std::uint64_t element) {
  std::uint64_t total = element;
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(total, static_cast<std::uint64_t>(size), &total))
      return std::nullopt;
  }
  return total;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensors::value_type*> order;
  std::set<std::string> names;
  for (const auto& named : tensors) {
    TORCH_CHECK(named.second.defined(), "tensors: \"", named.first,
                "\" is undefined; leave it out");
    TORCH_CHECK(named.first != "__metadata__" && names.insert(named.first).second, "tensors: \"",
                named.first, "\" is given twice or reserved; safetensors names are unique");
    TORCH_CHECK(name_of(named.second.scalar_type()), "tensors: \"", named.first,
                "\" has a dtype without a name in safetensors, ", named.second.scalar_type(),
                "; convert it first");
    order.push_back(&named);
  }
  // With the larger elements first every tensor starts at a multiple of its own element size.
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.element_size() > b->second.element_size();
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto* named : order) {
    const at::Tensor& tensor = named->second;
    const std::uint64_t end = offset + tensor.nbytes();
    header[named->first] = {{"dtype", name_of(tensor.scalar_type())},
                            {"shape", tensor.sizes().vec()},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    TORCH_CHECK(false, "tensors: a name or the metadata for ", path.string(),
                " is not UTF-8; rename it");
  }
  text.resize(
      (kLengthBytes + text.size() + kAlignment - 1) / kAlignment * kAlignment - kLengthBytes, ' ');

  std::uint8_t length[kLengthBytes];
  for (std::uint64_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<std::uint8_t>(text.size() >> (8 * i));
  DurableFile file(path);
  file.write(length, kLengthBytes);
  file.write(text);
  for (const auto* named : order) {
    const at::Tensor tensor = named->second.detach().to(at::kCPU).contiguous();
    file.write(tensor.const_data_ptr(), tensor.nbytes());
  }
  file.close();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path.string()) {
  // Not to wait for the writer of a named pipe, which is refused below.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TORCH_CHECK(file >= 0, "cannot read ", path_, ": ", std::strerror(errno),
              "; check the path and its permissions, or use an older checkpoint");
  struct stat status = {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const std::uint64_t size = regular ? static_cast<std::uint64_t>(status.st_size) : 0;
  void* address = MAP_FAILED;
  if (size > kLengthBytes)
    address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  const int reason = errno;
  ::close(file);
  TORCH_CHECK(regular, path_, " is not a regular file; give a safetensors file");
  TORCH_CHECK(size > kLengthBytes, path_, " is truncated (", size,
              " bytes); copy it again or use an older checkpoint");
  TORCH_CHECK(address != MAP_FAILED, "cannot map ", path_, ": ", std::strerror(reason),
              "; copy it to a local file system, or raise the memory limit (ulimit -v)");
  mapping_ = {static_cast<std::uint8_t*>(address), [size](std::uint8_t* p) { ::munmap(p, size); }};

  std::uint64_t length = 0;
  for (std::uint64_t i = 0; i < kLengthBytes; ++i)
    length |= std::uint64_t{mapping_.get()[i]} << (8 * i);
  const char* text = reinterpret_cast<const char*>(mapping_.get()) + kLengthBytes;
  const bool foreign = length < 2 || length > kMaxHeaderBytes || text[0] != '{';
  TORCH_CHECK(!foreign, path_,
              " is not a safetensors file; give one, or a checkpoint octavo wrote");
  TORCH_CHECK(length <= size - kLengthBytes, path_, " is truncated inside its header (", size,
              " bytes); copy it again or use an older checkpoint");
  data_start_ = kLengthBytes + length;
  const std::uint64_t data_bytes = size - data_start_;

  const json header = parse_json(std::string_view(text, length)).value;
  TORCH_CHECK(header.is_object(), path_,
              " is not a safetensors file (its header is no JSON object); give one, or a "
              "checkpoint octavo wrote");
  const auto check = [&](bool ok, const std::string& name) {
    TORCH_CHECK(ok, path_, " is damaged or not a safetensors file (header entry \"", name,
                "\"); copy it again or use an older checkpoint");
  };
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check(value.is_object(), name);
      for (const auto& [key, word] : value.items()) {
        check(word.is_string(), name);
        metadata_[key] = word.get<std::string>();
      }
      continue;
    }
    check(value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
              value.contains("shape") && value["shape"].is_array() &&
              value.contains("data_offsets") && value["data_offsets"].is_array() &&
              value["data_offsets"].size() == 2,
          name);
    const std::string word = value["dtype"].get<std::string>();
    const std::optional<at::ScalarType> dtype = dtype_of(word);
    TORCH_CHECK(dtype, path_, ": tensor \"", name, "\" has dtype ", word,
                ", which octavo does not read; convert it to F32, BF16 or F16");
    Entry entry{name, *dtype, {}, 0, 0};
    for (const json& extent : value["shape"]) {
      check(extent.is_number_unsigned() &&
                extent.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
            name);
      entry.sizes.push_back(extent.get<std::int64_t>());
    }
    for (const json& bound : value["data_offsets"]) check(bound.is_number_unsigned(), name);
    entry.begin = value["data_offsets"][0].get<std::uint64_t>();
    entry.end = value["data_offsets"][1].get<std::uint64_t>();
    check(entry.begin <= entry.end &&
              byte_count(entry.sizes, c10::elementSize(*dtype)) == entry.end - entry.begin,
          name);
    entries_.push_back(std::move(entry));
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t end = 0;
  for (const Entry& entry : entries_) {
    check(entry.begin == end, entry.name);  // the format allows no holes and no overlaps
    end = entry.end;
  }
  TORCH_CHECK(end <= data_bytes, path_, " is truncated: ", end, " bytes of data expected, ",
              data_bytes, " there; copy it again or use an older checkpoint");
  TORCH_CHECK(end == data_bytes, path_, " has ", data_bytes - end,
              " bytes after its last tensor; it is damaged, copy it again");
}

at::Tensor SafetensorsFile::tensor_of(const Entry& entry) const {
  const auto options = at::TensorOptions().dtype(entry.dtype);
  std::uint8_t* data = mapping_.get() + data_start_ + entry.begin;
  if (entry.begin == entry.end) return at::empty(entry.sizes, options);
  if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.sizes, options);
    std::memcpy(copy.mutable_data_ptr(), data, entry.end - entry.begin);
    return copy;
  }
  return at::from_blob(
      data, entry.sizes, [mapping = mapping_](void*) {}, options);
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (entry.name == name) return tensor_of(entry);
    names.push_back(entry.name);
  }
  TORCH_CHECK(false, path_, " has no tensor \"", name, "\"", did_you_mean(name, names));
}

NamedTensors SafetensorsFile::tensors() const {
  NamedTensors all;
  for (const Entry& entry : entries_) all.emplace_back(entry.name, tensor_of(entry));
  return all;
}

}  // namespace octavo::train
