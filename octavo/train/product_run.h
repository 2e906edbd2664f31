#pragma once

#include <cstdint>
#include <string>

#include "octavo/device/native_products.h"
#include "octavo/recipe/recipe.h"

namespace octavo::train {

/// The scaling of a product in FP8, by which a device's table says what computes it. A scale for
/// the whole tensor on one side only is a rowwise product with that scale repeated.
ScalingFamily family_of(const ProductSpec& product);

/// How a device runs one product, in the three words there are for it.
struct ProductRun {
  std::string how;           ///< "native", "emulated" or "high precision"
  std::string backend = {};  ///< what multiplies, "cublaslt" or "reference"; empty: named by `how`
  bool needs_probe = false;  ///< native only where a probe at start-up succeeds

  /// "native (cublaslt backend)", "emulated (reference backend)", "emulated", "high precision".
  std::string text() const;
};

/// A linear's product, or experts' (by groups of rows), which devices run in other ways.
enum class ProductKind : std::uint8_t { kDense, kGrouped };

/// The CPU has no FP8 products: there the reference backend emulates.
ProductRun product_run(const ProductSpec& product, const Architecture& architecture,
                       ProductKind kind = ProductKind::kDense);

/// The three products of a linear (or experts) in one phrase: "emulated (reference backend)" where
/// they run alike, otherwise "y native (cublaslt backend), dx native (cublaslt backend), dw high
/// precision".
std::string products_text(const LinearSpec& spec, const Architecture& architecture,
                          ProductKind kind = ProductKind::kDense);

/// Which products may keep partial sums in fewer bits, as the recipe's field has it: "none",
/// "forward" or "all" (those in FP8). Blockwise and MX products have none, whatever the field says.
std::string fast_accumulation_text(const LinearSpec& spec);

}  // namespace octavo::train
