#include "octavo/ops/names.h"

#include <c10/util/Exception.h>

#include <vector>

#include "octavo/recipe/nearest.h"

namespace octavo::ops {
namespace {

template <typename T>
struct Word {
  std::string word;
  T value;
};

template <typename T>
T find(const char* argument, std::string_view word, const std::vector<Word<T>>& known) {
  std::vector<std::string> words;
  for (const Word<T>& entry : known) {
    if (entry.word == word) return entry.value;
    words.push_back(entry.word);
  }
  TORCH_CHECK(false, argument, ": expected one of ", join(words), ", got '", word, "'",
              did_you_mean(word, words), "; give one of them");
}

}  // namespace

Format parse_format(const char* argument, std::string_view word) {
  std::vector<Word<Format>> known;
  for (const Format format : kAllFormats) {
    known.push_back({std::string(octavo::name(format)), format});
  }
  return find(argument, word, known);
}

Granularity parse_granularity(const char* argument, std::string_view word) {
  std::vector<Word<Granularity>> known;
  for (const Granularity granularity :
       {Granularity::tensorwise(), Granularity::rowwise(), Granularity::colwise(),
        Granularity::block_1x128(), Granularity::block_128x1(), Granularity::block_128x128(),
        Granularity::mx_1x32()}) {
    known.push_back({to_string(granularity), granularity});
  }
  return find(argument, word, known);
}

ScaleRounding parse_scale_rounding(const char* argument, std::string_view word) {
  return find<ScaleRounding>(
      argument, word,
      {{"none", ScaleRounding::kNone}, {"power_of_two", ScaleRounding::kPowerOfTwo}});
}

MxRounding parse_mx_rounding(const char* argument, std::string_view word) {
  return find<MxRounding>(argument, word,
                          {{"floor", MxRounding::kFloor},
                           {"ceil", MxRounding::kCeil},
                           {"even", MxRounding::kEven},
                           {"rceil", MxRounding::kRceil}});
}

Backend parse_backend(const char* argument, std::string_view word) {
  return find<Backend>(argument, word,
                       {{"auto", Backend::kAuto},
                        {"reference", Backend::kReference},
                        {"cublaslt", Backend::kCublasLt},
                        {"octavo", Backend::kOctavo},
                        {"aten", Backend::kAten},
                        {"emulated", Backend::kEmulated}});
}

KeepWeightTransposed parse_keep(const char* argument, std::string_view word) {
  return find<KeepWeightTransposed>(argument, word,
                                    {{"auto", KeepWeightTransposed::kAuto},
                                     {"on", KeepWeightTransposed::kOn},
                                     {"off", KeepWeightTransposed::kOff}});
}

bool parse_transposed(const char* argument, std::string_view word) {
  return find<bool>(argument, word, {{"rows", false}, {"transposed", true}});
}

LayoutSpec parse_layout_spec(std::string_view format, std::string_view granularity,
                             std::string_view scale_rounding, std::string_view mx_rounding) {
  return {.format = parse_format("format", format),
          .granularity = parse_granularity("granularity", granularity),
          .scale_rounding = parse_scale_rounding("scale_rounding", scale_rounding),
          .mx_rounding = parse_mx_rounding("mx_rounding", mx_rounding)};
}

std::string name(KeepWeightTransposed keep) {
  switch (keep) {
    case KeepWeightTransposed::kAuto:
      return "auto";
    case KeepWeightTransposed::kOn:
      return "on";
    case KeepWeightTransposed::kOff:
      return "off";
  }
  TORCH_CHECK(false, "keep_weight_transposed: no such value ", static_cast<int>(keep));
}

}  // namespace octavo::ops
