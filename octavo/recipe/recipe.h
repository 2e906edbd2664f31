#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octavo/quantize/quantize.h"

namespace octavo {

/// Which products let FP8 tensor cores keep partial sums in fewer bits.
enum class FastAccumulation : std::uint8_t {
  kNone,
  kForward,
  kAll,
  kDefault,  ///< the layer's own: kForward for dense linears, kAll for experts
};

/// The flavour a recipe's elements take: the device's own, or forced.
enum class FlavourChoice : std::uint8_t { kAuto, kOCP, kFNUZ };

/// The named families.
enum class RecipeName : std::uint8_t {
  kTensorwise,
  kRowwise,
  kRowwiseWithGwHp,
  kBlockwise,
  kMxfp8,
};

/// One product's operands, both K-contiguous: {a, b}. Both absent: the product runs in high
/// precision.
struct ProductSpec {
  std::optional<LayoutSpec> a = {};
  std::optional<LayoutSpec> b = {};
  bool fast_accumulation = false;
  bool high_precision() const { return !a.has_value(); }
};

/// The three products of a linear with formats fixed for one platform.
///   forward: y  = x . w^T     a = x by rows,        b = w by rows
///   dx:      dx = dy . wT^T   a = dy by rows,       b = w transposed
///   dw:      dw = dyT . xT^T  a = dy transposed,    b = x transposed
struct LinearSpec {
  ProductSpec forward, dx, dw;
};

/// How a linear is trained in FP8: which operand of which product has which format and
/// granularity, or stays in high precision. Named instances only; the fields are the documented
/// variations. docs/recipes.md holds the table.
///
/// A field that means nothing for a name is ignored by resolve(), left out by to_string(), refused
/// by parse(), and does not count in comparisons: fast_accumulation for blockwise and mxfp8 (their
/// products have none), mx_rounding for all but mxfp8, gw_high_precision for rowwise_with_gw_hp.
struct Recipe {
  RecipeName name = RecipeName::kRowwise;
  FlavourChoice flavour = FlavourChoice::kAuto;
  FastAccumulation fast_accumulation = FastAccumulation::kDefault;
  MxRounding mx_rounding = MxRounding::kRceil;  ///< mxfp8 only
  bool gw_high_precision = false;  ///< dw in high precision; always true for rowwise_with_gw_hp

  /// Equal when they train alike: same name and same fields that mean something for it.
  friend bool operator==(const Recipe& a, const Recipe& b) {
    return a.to_string() == b.to_string();
  }

  /// Formats and granularities on a device of `native` flavour. mxfp8 forced to FNUZ is an error
  /// naming rowwise; mxfp8 with auto keeps OCP everywhere.
  LinearSpec resolve(Flavour native) const;

  /// The same for experts' linears (grouped products): every expert's weight and every group of
  /// rows has scales of its own; fast_accumulation is all unless the recipe says otherwise.
  /// tensorwise is an error that names rowwise.
  LinearSpec resolve_experts(Flavour native) const;

  /// The canonical string: the name, then fields that differ from the name's defaults in fixed
  /// order: "rowwise", "mxfp8(mx_rounding=floor)",
  /// "tensorwise(flavour=fnuz,fast_accumulation=all)".
  std::string to_string() const;

  /// Reads a canonical string, or an alias from torchao or torchtitan (recipe_aliases()) with
  /// optional fields in the same brackets. Fields may come in any order, with spaces around words.
  /// Errors: an unknown name (lists the known ones and the nearest), an unknown or repeated field
  /// or value (names the nearest), a field the recipe does not have, mxfp8 forced to FNUZ.
  static Recipe parse(std::string_view text);
};

/// The five names: tensorwise, rowwise, rowwise_with_gw_hp, blockwise, mxfp8.
std::vector<std::string> recipe_names();

/// Pairs of alias and canonical string: recipe names of torchao (float8, mx_formats and
/// moe_training) and torchtitan that differ from ours, each with the numerics it has there.
std::vector<std::pair<std::string, std::string>> recipe_aliases();

}  // namespace octavo
