#include "octavo/gemm/cublaslt_plan.h"

#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace octavo::cublaslt {
namespace {

using testing::error_of;

// Plans are the process's, so each test has GPUs of its own.
PlanKey key_of(int device, std::int64_t m) {
  PlanKey key;
  key.m = m;
  key.n = 14336;
  key.k = (std::int64_t{1} << 40) + 16;
  key.a_dtype = 24;
  key.b_scale = 4;
  key.out_dtype = 15;
  key.bias_dtype = -1;
  key.fast_accumulation = 1;
  key.device = device;
  return key;
}

Plan plan_of(std::uint64_t seed) {
  Plan plan;
  for (std::size_t i = 0; i < plan.algorithm.size(); ++i)
    plan.algorithm[i] = (seed + i) * 0x9E3779B97F4A7C15;
  plan.workspace = std::uint64_t{32} << 20;
  plan.fast_accumulation = seed % 2 == 0;
  return plan;
}

TEST(CublasLtPlan, TextHoldsEveryPlanOfOneGpu) {
  for (std::int64_t m : {16, 32, 48}) keep_plan(key_of(100, m), plan_of(m));
  keep_plan(key_of(101, 64), plan_of(64));
  const std::string text = write_plans("maker", 100);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);  // the head and three plans

  // Taken for a GPU of another index, as another process may count them.
  EXPECT_FALSE(find_plan(key_of(102, 16)));
  read_plans(text, "test", "maker", 102);
  for (std::int64_t m : {16, 32, 48}) {
    const auto plan = find_plan(key_of(102, m));
    ASSERT_TRUE(plan) << m;
    EXPECT_EQ(plan->algorithm, plan_of(m).algorithm);
    EXPECT_EQ(plan->workspace, plan_of(m).workspace);
    EXPECT_EQ(plan->fast_accumulation, plan_of(m).fast_accumulation);
  }
  EXPECT_FALSE(find_plan(key_of(102, 64)));
  EXPECT_EQ(write_plans("maker", 102), text);
}

TEST(CublasLtPlan, WhatIsReadReplacesAndTheRestStays) {
  keep_plan(key_of(110, 16), plan_of(1));
  const std::string text = write_plans("maker", 110);
  keep_plan(key_of(111, 16), plan_of(2));
  keep_plan(key_of(111, 32), plan_of(3));
  read_plans(text, "test", "maker", 111);
  EXPECT_EQ(find_plan(key_of(111, 16))->algorithm, plan_of(1).algorithm);
  EXPECT_EQ(find_plan(key_of(111, 32))->algorithm, plan_of(3).algorithm);
}

TEST(CublasLtPlan, AnotherMakersPlansAreRefused) {
  keep_plan(key_of(120, 16), plan_of(1));
  const std::string text = write_plans("cublaslt 130000, GPU A", 120);
  const auto error = [&](const std::string& given, const std::string& maker) {
    return error_of([&] { read_plans(given, "plan: x/gemm_plans.txt", maker, 121); });
  };
  for (const char* maker : {"cublaslt 130100, GPU A", "cublaslt 130000, GPU B"}) {
    const std::string refused = error(text, maker);
    EXPECT_NE(refused.find("plan: x/gemm_plans.txt"), std::string::npos) << refused;
    EXPECT_NE(refused.find("cublaslt 130000, GPU A"), std::string::npos) << refused;
    EXPECT_NE(refused.find(maker), std::string::npos) << refused;
  }
  EXPECT_NE(error("", "cublaslt 130000, GPU A").find("expected the first line"), std::string::npos);
  EXPECT_FALSE(find_plan(key_of(121, 16)));
}

TEST(CublasLtPlan, AChangedLineIsRefusedAndNothingTaken) {
  keep_plan(key_of(130, 16), plan_of(1));
  keep_plan(key_of(130, 32), plan_of(2));
  const std::string text = write_plans("maker", 130);
  const std::size_t second = text.rfind('\n', text.size() - 2) + 1;
  // Every character of the last line in turn, its end and its checksum too.
  for (std::size_t i = second; i + 1 < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == '7' ? '8' : '7';
    EXPECT_NE(error_of([&] { read_plans(changed, "test", "maker", 131); }).find("line 3"),
              std::string::npos)
        << changed.substr(second);
  }
  for (const std::string& cut : {text.substr(0, text.size() - 5), text + "1 2 3\n"})
    EXPECT_NE(error_of([&] { read_plans(cut, "test", "maker", 131); }), "no error");
  EXPECT_FALSE(find_plan(key_of(131, 16)));
  EXPECT_EQ(error_of([&] { read_plans(text, "test", "maker", 131); }), "no error");
}

}  // namespace
}  // namespace octavo::cublaslt
