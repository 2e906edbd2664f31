#include "grouped_gemm_problem.h"

namespace octavo::gpu::testing {
namespace {

constexpr Accumulation kAccumulations[] = {Accumulation::kFast, Accumulation::kFull};

void expect_rows(const std::vector<std::int32_t>& offs, std::int64_t M, std::int64_t N,
                 std::int64_t K) {
  SCOPED_TRACE("M " + std::to_string(M) + " N " + std::to_string(N) + " K " + std::to_string(K) +
               " E " + std::to_string(offs.size()));
  const Problem p = rows_problem(offs, M, N, K, Fill::kExact);
  for (Accumulation how : kAccumulations) {
    SCOPED_TRACE(how == Accumulation::kFast ? "fast" : "full");
    const GroupedGemmRowsArgs args{.M = M, .N = N, .K = K, .accumulation = how};
    expect_exact(p, p.run(args));
    expect_exact(p, p.run(args, /*counted=*/true));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void expect_k(const std::vector<std::int32_t>& offs, std::int64_t N, std::int64_t K,
              std::int64_t Mt) {
  SCOPED_TRACE("N " + std::to_string(N) + " K " + std::to_string(K) + " Mt " + std::to_string(Mt) +
               " E " + std::to_string(offs.size()));
  const Problem p = k_problem(offs, N, K, Mt, Fill::kExact);
  for (Accumulation how : kAccumulations) {
    SCOPED_TRACE(how == Accumulation::kFast ? "fast" : "full");
    const GroupedGemmKArgs args{.N = N, .K = K, .Mt = Mt, .accumulation = how};
    expect_exact(p, p.run(args));
    expect_exact(p, p.run(args, /*counted=*/true));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Around 64 rows (a warpgroup), 128 (a block), 256 (a cluster), and what needs masks everywhere.
TEST(GpuGroupedGemm, RowsOfOneGroup) {
  OCTAVO_REQUIRE_HOPPER();
  for (std::int32_t M : {1, 15, 16, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 384, 400}) {
    expect_rows({M}, M, 264, 144);
    if (HasFatalFailure()) return;
  }
}

// Around 64 columns (a chunk), 128 (half a tile), 256; odd numbers of tiles, with rows that share
// them (256) and do not (128); lengths around a stage.
TEST(GpuGroupedGemm, RowsColumnsAndContraction) {
  OCTAVO_REQUIRE_HOPPER();
  for (std::int64_t N : {8, 16, 56, 64, 72, 128, 136, 248, 256, 264, 384, 392, 520, 2312}) {
    expect_rows({130, 330, 516}, 516, N, 160);
    if (HasFatalFailure()) return;
  }
  for (std::int64_t K : {16, 32, 48, 112, 128, 144, 512, 528, 1040}) {
    expect_rows({130, 330, 516}, 516, 144, K);
    if (HasFatalFailure()) return;
  }
}

TEST(GpuGroupedGemm, RowsOfAwkwardGroups) {
  OCTAVO_REQUIRE_HOPPER();
  expect_rows({0}, 40, 64, 64);                              // nothing but rows of no group
  expect_rows({0, 0, 37, 37, 38, 300, 300}, 300, 136, 256);  // empty first, inner and last
  expect_rows({100, 229}, 700, 136, 256);                    // rows past the last offset
  expect_rows({-5, 50, 20, 1000}, 300, 136, 256);            // bad: clamped
  expect_rows({1000000, 3}, 300, 136, 256);
  std::vector<std::int32_t> ends(256);  // 256 experts, 0..6 rows each
  std::int32_t end = 0;
  for (int e = 0; e < 256; ++e) ends[e] = end += (e * 7) % 5 + (e % 3 == 0);
  expect_rows(ends, end + 3, 24, 144);
  for (int e = 0; e < 256; ++e) ends[e] = e < 200 ? 0 : 500;  // all in one
  expect_rows(ends, 500, 24, 144);
  std::vector<std::int32_t> many(kMaxGroups);
  for (int e = 0; e < kMaxGroups; ++e) many[e] = e;
  expect_rows(many, 600, 16, 32);
}

TEST(GpuGroupedGemm, ContractionOfOneGroup) {
  OCTAVO_REQUIRE_HOPPER();
  for (std::int32_t Mt : {16, 32, 48, 64, 80, 96, 112, 128, 144, 272, 512, 528, 656, 1040}) {
    expect_k({Mt}, 72, 136, Mt);
    if (HasFatalFailure()) return;
  }
  for (std::int64_t N : {1, 8, 63, 64, 65, 128, 129, 256, 257, 384, 400}) {
    expect_k({176}, N, 264, 176);
    if (HasFatalFailure()) return;
  }
  for (std::int64_t K : {8, 64, 72, 128, 136, 256, 264, 392, 520, 2312}) {
    expect_k({176}, 136, K, 176);
    if (HasFatalFailure()) return;
  }
}

TEST(GpuGroupedGemm, ContractionOfAwkwardGroups) {
  OCTAVO_REQUIRE_HOPPER();
  expect_k({0, 0, 16, 16, 64, 720, 720}, 200, 136, 720);  // empty first, inner and last
  expect_k({112, 240, 272}, 200, 136, 592);               // columns past the last end
  expect_k({0, 0}, 72, 80, 64);
  expect_k({-16, 64, 32, 100000}, 72, 80, 320);  // bad: clamped
  std::vector<std::int32_t> ends(256);
  std::int32_t end = 0;
  for (int e = 0; e < 256; ++e) ends[e] = end += 16 * ((e * 7) % 5);
  expect_k(ends, 24, 40, end + 16);
  std::vector<std::int32_t> many(kMaxGroups);
  for (int e = 0; e < kMaxGroups; ++e) many[e] = 16 * e;
  expect_k(many, 8, 8, 16 * kMaxGroups);
}

// More tiles than blocks, so that everyone takes several; a long sum; values like training's.
TEST(GpuGroupedGemm, CloseToFp64OnManyTiles) {
  OCTAVO_REQUIRE_HOPPER();
  const std::vector<std::int32_t> offs = {300, 301, 301, 1400, 2000};
  const Problem rows = rows_problem(offs, 2048, 1544, 272, Fill::kNormal);
  const Problem longer = rows_problem({40, 90}, 90, 200, 7168, Fill::kNormal);
  const Problem columns = k_problem({304, 320, 320, 1424, 2048}, 520, 392, 2064, Fill::kNormal);
  const Problem many = k_problem({48, 48, 160}, 1288, 1800, 176, Fill::kNormal);
  for (Accumulation how : kAccumulations) {
    // bf16 alone leaves 56 dB. The tensor cores' own sums of 7168 are the worst here.
    const bool full = how == Accumulation::kFull;
    const double a = snr(
        rows, rows.run(GroupedGemmRowsArgs{.M = 2048, .N = 1544, .K = 272, .accumulation = how}));
    const double b = snr(
        longer, longer.run(GroupedGemmRowsArgs{.M = 90, .N = 200, .K = 7168, .accumulation = how}));
    const double c =
        snr(columns,
            columns.run(GroupedGemmKArgs{.N = 520, .K = 392, .Mt = 2064, .accumulation = how}));
    const double d =
        snr(many, many.run(GroupedGemmKArgs{.N = 1288, .K = 1800, .Mt = 176, .accumulation = how}));
    std::printf("%s: %.1f, K 7168: %.1f, contraction: %.1f, %.1f dB\n", full ? "full" : "fast", a,
                b, c, d);
    EXPECT_GE(a, full ? 54.0 : 50.0);
    EXPECT_GE(b, full ? 54.0 : 45.0);
    EXPECT_GE(c, full ? 54.0 : 48.0);
    EXPECT_GE(d, full ? 54.0 : 50.0);
  }
  const Problem rows_blocks = rows_block_problem(offs, 2048, 1544, 272, Fill::kNormal);
  const Problem column_blocks =
      k_block_problem({384, 512, 512, 1536, 2048}, 520, 392, 2048, Fill::kNormal);
  const double e =
      snr(rows_blocks, rows_blocks.run(GroupedGemmRowsArgs{.M = 2048, .N = 1544, .K = 272}));
  const double f =
      snr(column_blocks, column_blocks.run(GroupedGemmKArgs{.N = 520, .K = 392, .Mt = 2048}));
  std::printf("blocks: %.1f, contraction: %.1f dB\n", e, f);
  EXPECT_GE(e, 54.0);
  EXPECT_GE(f, 54.0);
}

// Every count of blocks of the contraction and of b's rows around the tile's, both layouts of
// tiles, empty and bad groups.
TEST(GpuGroupedGemm, BlockScalesOfRows) {
  OCTAVO_REQUIRE_HOPPER();
  const auto expect = [](const std::vector<std::int32_t>& offs, std::int64_t M, std::int64_t N,
                         std::int64_t K) {
    SCOPED_TRACE("M " + std::to_string(M) + " N " + std::to_string(N) + " K " + std::to_string(K));
    const Problem p = rows_block_problem(offs, M, N, K, Fill::kExact);
    const GroupedGemmRowsArgs args{.M = M, .N = N, .K = K};
    expect_exact(p, p.run(args));
    expect_exact(p, p.run(args, /*counted=*/true));
  };
  for (std::int64_t N : {8, 120, 128, 136, 256, 264, 392, 648}) {
    expect({130, 330, 516}, 516, N, 272);
    if (HasFatalFailure()) return;
  }
  for (std::int64_t K : {16, 128, 144, 256, 640, 656, 1040}) {
    expect({130, 330, 516}, 516, 264, K);
    if (HasFatalFailure()) return;
  }
  for (std::int32_t M : {1, 64, 65, 128, 129, 257}) {
    expect({M}, M, 264, 272);
    if (HasFatalFailure()) return;
  }
  expect({0, 0, 37, 37, 38, 300, 300}, 330, 136, 256);
  expect({-5, 50, 20, 1000}, 300, 136, 272);  // bad: clamped
  expect({0}, 40, 64, 64);
}

TEST(GpuGroupedGemm, BlockScalesOfTheContraction) {
  OCTAVO_REQUIRE_HOPPER();
  const auto expect = [](const std::vector<std::int32_t>& offs, std::int64_t N, std::int64_t K,
                         std::int64_t Mt) {
    SCOPED_TRACE("N " + std::to_string(N) + " K " + std::to_string(K) + " Mt " +
                 std::to_string(Mt));
    const Problem p = k_block_problem(offs, N, K, Mt, Fill::kExact);
    const GroupedGemmKArgs args{.N = N, .K = K, .Mt = Mt};
    expect_exact(p, p.run(args));
    expect_exact(p, p.run(args, /*counted=*/true));
  };
  for (std::int64_t N : {1, 63, 64, 65, 128, 129, 257, 400}) {
    expect({128, 128, 512}, N, 264, 640);
    if (HasFatalFailure()) return;
  }
  for (std::int64_t K : {8, 64, 128, 136, 256, 264, 392, 648}) {
    expect({256, 384}, 136, K, 384);
    if (HasFatalFailure()) return;
  }
  expect({0, 0, 128, 128, 640}, 72, 80, 768);
  expect({128, 256, 384, 512, 640, 768, 896, 1024}, 392, 520, 1024);
}

// dw added to what is there: the bits of adding the rounded product afterwards.
TEST(GpuGroupedGemm, AddsToWhatOutHolds) {
  OCTAVO_REQUIRE_HOPPER();
  const std::vector<std::int32_t> offs = {48, 48, 176};
  std::vector<std::uint16_t> held(3 * 136 * 264);
  std::mt19937 random(5);
  for (auto& v : held) v = round_to_bf16(std::ldexp(double(random() % 255) - 127.0, -3));
  const auto check = [&](const Problem& p, GroupedGemmKArgs args) {
    const auto alone = p.run(args), sum = p.run(args, /*counted=*/false, &held);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto expected = round_to_bf16(static_cast<float>(from_bf16(alone[i])) +
                                          static_cast<float>(from_bf16(held[i])));
      ASSERT_TRUE(sum[i] == expected || ((sum[i] | expected) & 0x7FFF) == 0) << "at " << i;
    }
  };
  for (Accumulation how : kAccumulations) {
    check(k_problem(offs, 136, 264, 192, Fill::kNormal),
          {.N = 136, .K = 264, .Mt = 192, .accumulation = how});
  }
  check(k_block_problem({128, 128, 384}, 136, 264, 384, Fill::kNormal),
        {.N = 136, .K = 264, .Mt = 384});
}

// NaN and Inf (as scale) of one group leave the others' bits alone.
TEST(GpuGroupedGemm, NanStaysInItsGroup) {
  OCTAVO_REQUIRE_HOPPER();
  const std::int64_t N = 136, K = 144, M = 300;
  const std::vector<std::int32_t> offs = {100, 177, 300};
  const Problem clean = rows_problem(offs, M, N, K, Fill::kExact);
  Problem dirty = clean;
  std::fill(dirty.a.begin() + 100 * K, dirty.a.begin() + 177 * K, std::uint8_t{0x7F});
  std::fill(dirty.b.begin() + N * K, dirty.b.begin() + 2 * N * K, std::uint8_t{0xFF});
  const std::vector<std::int32_t> ends = {48, 128, 272};  // the second begins and ends in a stage
  const Problem clean_k = k_problem(ends, 72, 80, 272, Fill::kExact);
  Problem dirty_k = clean_k;
  for (std::int64_t n = 0; n < 72; ++n) std::fill_n(dirty_k.a.begin() + n * 272 + 48, 80, 0x7F);
  for (std::int64_t k = 0; k < 80; ++k) std::fill_n(dirty_k.b.begin() + k * 272 + 48, 80, 0xFF);
  for (Accumulation how : kAccumulations) {
    const GroupedGemmRowsArgs rows{.M = M, .N = N, .K = K, .accumulation = how};
    const auto expected = clean.run(rows), actual = dirty.run(rows);
    for (std::int64_t i = 0; i < M * N; ++i) {
      const bool second = i / N >= 100 && i / N < 177;
      ASSERT_TRUE(second ? is_nan_bf16(actual[i]) : actual[i] == expected[i]) << "row " << i / N;
    }
    const GroupedGemmKArgs columns{.N = 72, .K = 80, .Mt = 272, .accumulation = how};
    const auto expected_k = clean_k.run(columns), actual_k = dirty_k.run(columns);
    for (std::int64_t i = 0; i < 3 * 72 * 80; ++i) {
      const bool second = i / (72 * 80) == 1;
      ASSERT_TRUE(second ? is_nan_bf16(actual_k[i]) : actual_k[i] == expected_k[i])
          << "group " << i / (72 * 80) << " at " << i % (72 * 80);
    }
  }
}

TEST(GpuGroupedGemm, SameBitsInEveryRun) {
  OCTAVO_REQUIRE_HOPPER();
  const Problem p = rows_problem({700, 701, 1900}, 2000, 776, 528, Fill::kNormal);
  const GroupedGemmRowsArgs args{.M = 2000, .N = 776, .K = 528};
  const auto first = p.run(args);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(p.run(args, /*counted=*/i % 2 == 1), first);
}

TEST(GpuGroupedGemm, EmptySizes) {
  OCTAVO_REQUIRE_HOPPER();
  DeviceBuffer out(2 * 48), offs(4);
  offs.zero();
  EXPECT_EQ(
      grouped_gemm_rows(
          {.offs = offs.get<std::int32_t>(), .out = out.get<>(), .M = 6, .N = 8, .K = 0, .E = 1},
          nullptr),
      nullptr);
  EXPECT_EQ(out.download<std::uint16_t>(), std::vector<std::uint16_t>(48, 0));
  DeviceBuffer other(2 * 48);
  EXPECT_EQ(
      grouped_gemm_k(
          {.offs = offs.get<std::int32_t>(), .out = other.get<>(), .N = 6, .K = 8, .Mt = 0, .E = 1},
          nullptr),
      nullptr);
  EXPECT_EQ(other.download<std::uint16_t>(), std::vector<std::uint16_t>(48, 0));
  EXPECT_EQ(grouped_gemm_rows({.M = 0, .N = 8, .K = 16, .E = 1}, nullptr), nullptr);
  EXPECT_EQ(grouped_gemm_k({.N = 0, .K = 8, .Mt = 16, .E = 1}, nullptr), nullptr);
}

TEST(GpuGroupedGemm, SaysWhatItCannot) {
  OCTAVO_REQUIRE_HOPPER();
  const auto rows = [](GroupedGemmRowsArgs args) {
    const char* wrong = grouped_gemm_rows(args, nullptr);
    return std::string(wrong ? wrong : "");
  };
  const auto aligned = reinterpret_cast<std::uint8_t*>(4096);
  EXPECT_NE(rows({.M = 8, .N = 8, .K = 24, .E = 1}).find("multiple of 16"), std::string::npos);
  EXPECT_NE(rows({.M = 8, .N = 12, .K = 32, .E = 1}).find("multiple of 8"), std::string::npos);
  EXPECT_NE(rows({.M = 8, .N = 8, .K = 32, .E = 513}).find("512 groups"), std::string::npos);
  EXPECT_NE(rows({.a = aligned + 8, .M = 8, .N = 8, .K = 32, .E = 1}).find("aligned"),
            std::string::npos);
  const char* wrong = grouped_gemm_k({.N = 8, .K = 8, .Mt = 24, .E = 1}, nullptr);
  EXPECT_NE(std::string(wrong ? wrong : "").find("multiple of 16"), std::string::npos);
}

}  // namespace
}  // namespace octavo::gpu::testing
