#include "octavo/gemm/tiled_scales.h"

#include <ATen/Functions.h>

#include "octavo/gemm/pad.h"

namespace octavo {
namespace {

constexpr std::int64_t kTileRowCount = 128, kTileBlocks = 4, kTileBytes = 512;

// Where (row, column) of a matrix of `across` tiles a row lies; all broadcast.
at::Tensor tiled_place(const at::Tensor& row, const at::Tensor& column, const at::Tensor& across) {
  const auto div = [](const at::Tensor& x, std::int64_t by) {
    return at::floor_divide(x, at::Scalar(by));
  };
  return div(row, kTileRowCount)
      .mul(across)
      .add(div(column, kTileBlocks))
      .mul(kTileBytes)
      .add(row.remainder(32).mul(16))
      .add(div(row.remainder(kTileRowCount), 32).mul(4))
      .add(column.remainder(kTileBlocks));
}

// Each group's begin, and the begin where each is rounded up to `tile`: (E) int64 both.
struct Begins {
  at::Tensor own, tiled, sizes;
};

Begins begins_of(const at::Tensor& ends, std::int64_t tile) {
  const at::Tensor end = ends.to(at::kLong);
  const at::Tensor begin = at::constant_pad_nd(end, {1, -1});
  const at::Tensor sizes = end.sub(begin);
  const at::Tensor rounded = at::floor_divide(sizes.add(tile - 1), at::Scalar(tile)).mul(tile);
  return {begin, rounded.cumsum(0).sub(rounded), rounded};
}

// The group of each of `count` lines; E for those past the last.
at::Tensor group_of_each(const at::Tensor& ends, std::int64_t count) {
  return at::bucketize(at::arange(count, ends.options()), ends, /*out_int32=*/false,
                       /*right=*/true);
}

at::Tensor scattered(const at::Tensor& scale, const at::Tensor& place, at::IntArrayRef sizes) {
  const at::Tensor bytes = scale.view(at::kByte);
  const at::Tensor out = at::zeros(sizes, bytes.options());
  out.view({-1}).scatter_(0, place.expand(bytes.sizes()).reshape({-1}), bytes.reshape({-1}));
  return out.view(at::kFloat8_e8m0fnu);
}

at::Tensor lines(std::int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kLong));
}

}  // namespace

at::Tensor tiled_scales_by_rows(const at::Tensor& scale, const at::Tensor& offs) {
  const std::int64_t m = scale.size(0), c = scale.size(1), experts = offs.size(0);
  const std::int64_t across = round_up(c, kTileBlocks) / kTileBlocks;
  const Begins begins = begins_of(offs, kTileRowCount);
  // Rows past the last offset follow the last group.
  const at::Tensor shift = at::cat(
      {begins.tiled.sub(begins.own),
       begins.tiled.add(begins.sizes).slice(0, experts - 1).sub(offs.slice(0, experts - 1))});
  const at::Tensor row =
      lines(m, offs).add(shift.index_select(0, group_of_each(offs, m))).unsqueeze(1);
  const at::Tensor place =
      tiled_place(row, lines(c, offs).unsqueeze(0), at::full({}, across, row.options()));
  return scattered(scale, place,
                   {round_up(m, kTileRowCount) + kTileRowCount * experts, across * kTileBlocks});
}

at::Tensor tiled_scales_by_columns(const at::Tensor& scale, const at::Tensor& ends) {
  const std::int64_t n = scale.size(0), c = scale.size(1), experts = ends.size(0);
  const std::int64_t rows = round_up(n, kTileRowCount);
  const Begins begins = begins_of(ends, kTileBlocks);
  // Columns past the last end form one more group.
  const auto with_rest = [&](const at::Tensor& of_groups, const at::Tensor& rest) {
    return at::cat({of_groups, rest}).index_select(0, group_of_each(ends, c)).unsqueeze(0);
  };
  const at::Tensor last = ends.slice(0, experts - 1).to(at::kLong);
  const at::Tensor end = begins.tiled.add(begins.sizes).slice(0, experts - 1);
  const at::Tensor rest =
      at::floor_divide(last.neg().add(c + kTileBlocks - 1), at::Scalar(kTileBlocks))
          .mul(kTileBlocks);
  const at::Tensor column = lines(c, ends).unsqueeze(0).sub(with_rest(begins.own, last));
  const at::Tensor across =
      at::floor_divide(with_rest(begins.sizes, rest), at::Scalar(kTileBlocks));
  const at::Tensor place = tiled_place(lines(n, ends).unsqueeze(1), column, across)
                               .add(with_rest(begins.tiled, end).mul(rows));
  return scattered(scale, place, {rows, round_up(c, kTileBlocks) + kTileBlocks * experts});
}

at::Tensor tiled_scales_of_experts(const at::Tensor& scale) {
  const std::int64_t experts = scale.size(0), n = scale.size(1), c = scale.size(2);
  const std::int64_t rows = round_up(n, kTileRowCount), blocks = round_up(c, kTileBlocks);
  const at::Tensor row = lines(n, scale).view({1, n, 1}), column = lines(c, scale).view({1, 1, c});
  const at::Tensor place =
      tiled_place(row, column, at::full({}, blocks / kTileBlocks, row.options()))
          .add(lines(experts, scale).view({experts, 1, 1}).mul(rows * blocks));
  return scattered(scale, place, {experts, rows * blocks});
}

}  // namespace octavo
