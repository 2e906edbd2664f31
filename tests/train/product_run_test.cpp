#include "octavo/train/product_run.h"

#include <gtest/gtest.h>

#include <set>

namespace octavo::train {
namespace {

std::string products_on(const char* architecture, const char* recipe) {
  const Architecture device = parse_architecture(architecture);
  return products_text(Recipe::parse(recipe).resolve(device.flavour), device);
}

TEST(ProductRun, FamiliesAreTheRecipes) {
  const auto family = [](const char* recipe) {
    return family_of(Recipe::parse(recipe).resolve(Flavour::kOCP).forward);
  };
  EXPECT_EQ(family("tensorwise"), ScalingFamily::kTensorwise);
  EXPECT_EQ(family("rowwise"), ScalingFamily::kRowwise);
  EXPECT_EQ(family("blockwise"), ScalingFamily::kBlockwise);
  EXPECT_EQ(family("mxfp8"), ScalingFamily::kMx);
  // dy by rows with one scale for all of w: the rowwise product.
  EXPECT_EQ(family_of(Recipe::parse("rowwise_with_gw_hp").resolve(Flavour::kOCP).dx),
            ScalingFamily::kRowwise);
}

TEST(ProductRun, SaysHowAndWhatMultiplies) {
  EXPECT_EQ(products_on("sm_90", "rowwise"), "native (cublaslt backend)");
  EXPECT_EQ(products_on("sm_100", "mxfp8"), "native (aten backend)");
  EXPECT_EQ(products_on("sm_90", "mxfp8"), "emulated");
  EXPECT_EQ(products_on("sm_90", "rowwise(flavour=fnuz)"), "emulated");
  EXPECT_EQ(products_on("gfx942:sramecc+:xnack-", "tensorwise"), "native (aten backend)");
  EXPECT_EQ(products_on("sm_90", "rowwise_with_gw_hp"),
            "y native (cublaslt backend), dx native (cublaslt backend), dw high precision");
  EXPECT_TRUE(product_run(Recipe{}.resolve(Flavour::kOCP).forward, parse_architecture("sm_120"))
                  .needs_probe);
}

TEST(ProductRun, TheCpuEmulatesWhateverTheRecipe) {
  for (const std::string& recipe : recipe_names()) {
    const LinearSpec spec = Recipe::parse(recipe).resolve(Flavour::kOCP);
    for (const ProductSpec& product : {spec.forward, spec.dx, spec.dw}) {
      EXPECT_EQ(product_run(product, parse_architecture("cpu")).text(),
                product.high_precision() ? "high precision" : "emulated (reference backend)");
    }
  }
}

TEST(ProductRun, ThereAreThreeWords) {
  std::set<std::string> words;
  for (const Architecture& device : kArchitectures) {
    for (const std::string& recipe : recipe_names()) {
      const LinearSpec spec = Recipe::parse(recipe).resolve(device.flavour);
      for (const ProductSpec& product : {spec.forward, spec.dx, spec.dw})
        words.insert(product_run(product, device).how);
    }
  }
  EXPECT_EQ(words, (std::set<std::string>{"native", "emulated", "high precision"}));
}

TEST(ProductRun, FastAccumulationIsWhatTheProductsHave) {
  const auto text = [](const char* recipe) {
    return fast_accumulation_text(Recipe::parse(recipe).resolve(Flavour::kOCP));
  };
  EXPECT_EQ(text("rowwise"), "forward");
  EXPECT_EQ(text("rowwise(fast_accumulation=none)"), "none");
  EXPECT_EQ(text("tensorwise(fast_accumulation=all)"), "all");
  EXPECT_EQ(text("rowwise_with_gw_hp(fast_accumulation=all)"), "all");
  EXPECT_EQ(text("blockwise"), "none");
  EXPECT_EQ(text("mxfp8"), "none");
}

}  // namespace
}  // namespace octavo::train
