// Every operator of torch.ops.octavo. Recipes cross as strings (Recipe::parse); layouts, formats,
// granularities and backends by the names the rest of Octavo prints.
#include <torch/library.h>

TORCH_LIBRARY(octavo, m) {
  // y = x . w^T (+ bias), differentiable (ops/float8_linear.h).
  // keep_weight_transposed: auto, on or off. w_rows ... w_transposed_scale: quantize_weight's of
  // this w and recipe, each pair both or none; w is then not quantised again.
  m.def(
      "float8_linear(Tensor x, Tensor w, Tensor? bias=None, str recipe=\"rowwise\", "
      "str keep_weight_transposed=\"auto\", Tensor? w_rows=None, Tensor? w_rows_scale=None, "
      "Tensor? w_transposed=None, Tensor? w_transposed_scale=None) -> Tensor");

  // What float8_linear makes of w (N, K) by itself: w_rows (N, K), w_transposed (K, N), bytes with
  // flat scales, for calls that share a weight; or float8_grouped_linear of w (E, N, K). Not
  // differentiable: w's gradient comes from the linear's own w.
  m.def(
      "quantize_weight(Tensor w, str recipe=\"rowwise\") "
      "-> (Tensor w_rows, Tensor w_rows_scale, Tensor w_transposed, Tensor w_transposed_scale)");

  // What float8_linear makes of x (..., K) = (M, K) by itself: x_rows (M, K), and x_bytes and
  // x_scale as float8_linear_forward has them. Graphs that are traced hold it as a call of its own,
  // so that linears of one x share it once a compiler has removed what is there twice.
  m.def(
      "quantize_input(Tensor x, str recipe, bool need_dw) "
      "-> (Tensor x_rows, Tensor x_rows_scale, Tensor x_bytes, Tensor x_scale)");

  // float8_linear with what backward needs as explicit outputs:
  //   x_bytes (K, M), x_scale: x transposed, where need_dw and the recipe's dw product is in FP8
  //   w_bytes (K, N), w_scale: w transposed, where need_dx and keep_weight_transposed
  // and empty (0) tensors otherwise. With w_rows or x_rows given, those rows are not quantised.
  // Scales are flat, in memory order (ops/scale_layout.h). FP8 data and e8m0 scales cross as uint8:
  // torch 2.11 cannot compare FP8 tensors (allclose), so opcheck could not test an operator that
  // takes them.
  m.def(
      "float8_linear_forward(Tensor x, Tensor w, Tensor? bias, str recipe, bool need_dx, "
      "bool need_dw, bool keep_weight_transposed, Tensor? w_rows=None, "
      "Tensor? w_rows_scale=None, Tensor? x_rows=None, Tensor? x_rows_scale=None) "
      "-> (Tensor y, Tensor x_bytes, Tensor x_scale, Tensor w_bytes, Tensor w_scale)");

  // dx (..., K) in dy's dtype, wanted where w is given; dw (N, K) in dw_dtype, wanted where x is
  // given; dbias (N) in dbias_dtype, wanted where that is given; empty (0) tensors otherwise.
  // x: x_bytes with x_scale, or x itself in high precision (..., K) without a scale.
  // w: w_bytes with w_scale, or w itself in high precision (N, K) without a scale.
  m.def(
      "float8_linear_backward(Tensor dy, Tensor? x, Tensor? x_scale, Tensor? w, Tensor? w_scale, "
      "str recipe, ScalarType dw_dtype, ScalarType? dbias_dtype=None) "
      "-> (Tensor dx, Tensor dw, Tensor dbias)");

  // (silu(x . w_gate^T) * (x . w_up^T)) . w_down^T, differentiable (ops/float8_swiglu_mlp.h). fuse:
  // quantise inside the passes that compute; the bits are the same without.
  m.def(
      "float8_swiglu_mlp(Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down, "
      "str recipe=\"rowwise\", str keep_weight_transposed=\"auto\", bool fuse=True) -> Tensor");

  // The same, with what backward needs in `saved`: gate, up (M, F); x_bytes (D, M), x_scale;
  // h_bytes (F, M), h_scale, or h (M, F) where the recipe keeps dw in high precision; then bytes
  // and scale of w_gate, w_up and w_down transposed, where needed and keep_weight_transposed. Empty
  // (0) tensors for what is not needed: x where not need_dw, and so on.
  m.def(
      "float8_swiglu_mlp_forward(Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down, str recipe, "
      "bool need_dx, bool need_dw, bool keep_weight_transposed, bool fuse=True) "
      "-> (Tensor y, Tensor[] saved)");

  // dx, wanted where need_dx; the weights' gradients, wanted where x and h are given; empty (0)
  // otherwise. x and h as float8_linear_backward's x, weights as its w.
  m.def(
      "float8_swiglu_mlp_backward(Tensor dy, Tensor gate, Tensor up, Tensor? x, Tensor? x_scale, "
      "Tensor? h, Tensor? h_scale, Tensor w_gate, Tensor? w_gate_scale, Tensor w_up, "
      "Tensor? w_up_scale, Tensor w_down, Tensor? w_down_scale, str recipe, bool need_dx, "
      "ScalarType dw_dtype, bool fuse=True) "
      "-> (Tensor dx, Tensor dw_gate, Tensor dw_up, Tensor dw_down)");

  // One layout of a matrix x (M, K): data (M, K), or (K, M) for layout="transposed", and its
  // scales (quantize/quantize.h). amax: fp32, one number a scale, where scales (tensorwise, rowwise
  // or colwise) follow from it instead of from x: of a matrix of which x is a part.
  m.def(
      "quantize(Tensor x, str format=\"e4m3fn\", str granularity=\"rowwise\", *, "
      "str layout=\"rows\", str scale_rounding=\"none\", str mx_rounding=\"rceil\", "
      "Tensor? amax=None) -> (Tensor data, Tensor scale)");

  // The largest magnitudes of a matrix x (M, K) in one read, fp32: for each of the granularities
  // tensorwise, rowwise and colwise 1, M or K numbers, one after the other
  // (quantize/amaxes.h).
  m.def("amax(Tensor x, str[] granularities) -> Tensor");

  // A matrix (R, C) of one byte an element, (C, R) contiguous: what FP8 bytes that came by rows are
  // transposed by.
  m.def("transpose_bytes(Tensor x) -> Tensor");

  // (M, K) . (N, K)^T (+ bias) (gemm/scaled_mm.h).
  m.def(
      "scaled_mm(Tensor a, Tensor a_scale, str a_granularity, Tensor b, Tensor b_scale, "
      "str b_granularity, Tensor? bias=None, *, ScalarType out_dtype=bfloat16, "
      "bool fast_accumulation=False, str backend=\"auto\") -> Tensor");

  // y[m] = x[m] . w[g]^T for the rows m of group g: experts' linears (ops/float8_grouped_linear.h).
  // x (M, K), w (E, N, K), offs (E) int32. Two projections of one x (gate and up) are one call with
  // w (E, 2F, K). w_rows ... w_transposed_scale: quantize_weight's of this w and recipe.
  m.def(
      "float8_grouped_linear(Tensor x, Tensor w, Tensor offs, str recipe=\"rowwise\", "
      "str keep_weight_transposed=\"auto\", Tensor? w_rows=None, Tensor? w_rows_scale=None, "
      "Tensor? w_transposed=None, Tensor? w_transposed_scale=None) -> Tensor");

  // The same, with what backward needs as explicit outputs, as float8_linear_forward's:
  //   x_bytes (K, Mt), x_scale: x transposed, each group aligned (quantize/quantize_grouped.h),
  //   where need_dw and the recipe's dw product is in FP8
  //   w_bytes (E, K, N), w_scale: w transposed, where need_dx and keep_weight_transposed
  m.def(
      "float8_grouped_linear_forward(Tensor x, Tensor w, Tensor offs, str recipe, bool need_dx, "
      "bool need_dw, bool keep_weight_transposed, Tensor? w_rows=None, "
      "Tensor? w_rows_scale=None) "
      "-> (Tensor y, Tensor x_bytes, Tensor x_scale, Tensor w_bytes, Tensor w_scale)");

  // dx (M, K) in dy's dtype, wanted where w is given; dw (E, N, K) in dw_dtype, wanted where x is
  // given; empty (0) tensors otherwise.
  // x: x_bytes with x_scale, or x itself in high precision (M, K) without a scale.
  // w: w_bytes with w_scale, or w itself in high precision (E, N, K) without a scale.
  m.def(
      "float8_grouped_linear_backward(Tensor dy, Tensor? x, Tensor? x_scale, Tensor? w, "
      "Tensor? w_scale, Tensor offs, str recipe, ScalarType dw_dtype) -> (Tensor dx, Tensor dw)");

  // E SwiGLU networks of tokens by groups, differentiable (ops/float8_experts.h): x (M, D),
  // w_gate_up (E, 2F, D), w_down (E, D', F).
  m.def(
      "float8_experts(Tensor x, Tensor w_gate_up, Tensor w_down, Tensor offs, "
      "str recipe=\"rowwise\", str keep_weight_transposed=\"auto\", bool fuse=True) -> Tensor");

  // The same, with what backward needs in `saved`, as float8_swiglu_mlp_forward's: gate_up (M, 2F);
  // x_bytes (D, Mt), x_scale; h_bytes (F, Mt), h_scale, or h (M, F); bytes and scale of w_gate_up
  // and w_down transposed.
  m.def(
      "float8_experts_forward(Tensor x, Tensor w_gate_up, Tensor w_down, Tensor offs, str recipe, "
      "bool need_dx, bool need_dw, bool keep_weight_transposed, bool fuse=True) "
      "-> (Tensor y, Tensor[] saved)");
  m.def(
      "float8_experts_backward(Tensor dy, Tensor gate_up, Tensor? x, Tensor? x_scale, Tensor? h, "
      "Tensor? h_scale, Tensor w_gate_up, Tensor? w_gate_up_scale, Tensor w_down, "
      "Tensor? w_down_scale, Tensor offs, str recipe, bool need_dx, ScalarType dw_dtype, "
      "bool fuse=True) -> (Tensor dx, Tensor dw_gate_up, Tensor dw_down)");

  // One layout of activations x (M, K) by groups: data (M, K), or (K, Mt) for layout="transposed",
  // its scales, and the groups' ends in it (quantize/quantize_grouped.h).
  m.def(
      "quantize_grouped(Tensor x, Tensor offs, str format=\"e4m3fn\", "
      "str granularity=\"rowwise\", *, str layout=\"rows\", str scale_rounding=\"none\", "
      "str mx_rounding=\"rceil\") -> (Tensor data, Tensor scale, Tensor ends)");

  // One layout of experts' weights w (E, N, K): data (E, N, K), or (E, K, N) for
  // layout="transposed", and its scales.
  m.def(
      "quantize_expert_weights(Tensor w, str format=\"e4m3fn\", str granularity=\"rowwise\", *, "
      "str layout=\"rows\", str scale_rounding=\"none\", str mx_rounding=\"rceil\") "
      "-> (Tensor data, Tensor scale)");

  // b of three dimensions: (M, K) . (E, N, K)^T by groups of rows -> (M, N); of two:
  // (N, Mt) . (K, Mt)^T by groups of columns -> (E, N, K), with the aligned ends
  // (gemm/scaled_grouped_mm.h).
  m.def(
      "scaled_grouped_mm(Tensor a, Tensor a_scale, str a_granularity, Tensor b, Tensor b_scale, "
      "str b_granularity, Tensor ends, *, ScalarType out_dtype=bfloat16, "
      "bool fast_accumulation=False, str backend=\"auto\") -> Tensor");

  // y = x / sqrt(mean(x^2) + eps) * w over the last dimension, differentiable (ops/rms_norm.h).
  m.def("rms_norm(Tensor x, Tensor w, float eps) -> Tensor");

  // h = x + residual and y = rms_norm(h, w, eps), in one pass; differentiable.
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor w, float eps) -> (Tensor h, Tensor y)");

  // Both, with what backward needs: rstd (...), one number a row; h is empty (0) without a
  // residual.
  m.def(
      "rms_norm_forward(Tensor x, Tensor? residual, Tensor w, float eps) "
      "-> (Tensor h, Tensor y, Tensor rstd)");

  // dx, which is the gradient of x and of the residual, and dw; empty (0) where not needed. dh: the
  // gradient that reaches h past the normalisation.
  m.def(
      "rms_norm_backward(Tensor dy, Tensor? dh, Tensor h, Tensor w, Tensor rstd, bool need_dx, "
      "bool need_dw) -> (Tensor dx, Tensor dw)");

  // x (B, T, H, P) turned by its positions' angles, differentiable (ops/rope.h).
  m.def("rope(Tensor x, Tensor cosine, Tensor sine, bool inverse=False) -> Tensor");
  m.def(
      "rope_query_key(Tensor q, Tensor k, Tensor cosine, Tensor sine, bool inverse=False) "
      "-> (Tensor, Tensor)");

  // The mean cross-entropy of x . w^T in nats, differentiable (ops/linear_cross_entropy.h).
  m.def(
      "linear_cross_entropy(Tensor x, Tensor w, Tensor targets, int chunk_bytes=1073741824) "
      "-> Tensor");

  // The same with its gradients in x and w; empty (0) where not needed. GPUs only.
  m.def(
      "linear_cross_entropy_forward(Tensor x, Tensor w, Tensor targets, int chunk_bytes, "
      "bool need_dx, bool need_dw) -> (Tensor loss, Tensor dx, Tensor dw)");

  // silu(gate) * up, in fp32 inside (ops/swiglu.h). Without up, gate (..., 2F) holds both; then dup
  // is empty (0) and dgate (..., 2F).
  m.def("swiglu(Tensor gate, Tensor? up=None) -> Tensor");
  m.def("swiglu_backward(Tensor dh, Tensor gate, Tensor? up) -> (Tensor dgate, Tensor dup)");

  // Tokens to their experts' rows and back (ops/permute.h); choice (M k) and row (M, k) are int64,
  // weights (M, k) fp32.
  m.def("permute(Tensor x, Tensor choice, Tensor row, Tensor? weights=None) -> Tensor");
  m.def("unpermute(Tensor x, Tensor choice, Tensor row, Tensor? weights=None) -> Tensor");
  // dx (M, D), of unpermute (M k, D); dweights (M, k), wanted where x is given, otherwise empty
  // (0).
  m.def(
      "permute_backward(Tensor dy, Tensor? x, Tensor choice, Tensor row, Tensor? weights) "
      "-> (Tensor dx, Tensor dweights)");
  m.def(
      "unpermute_backward(Tensor dy, Tensor? x, Tensor choice, Tensor row, Tensor? weights) "
      "-> (Tensor dx, Tensor dweights)");

  // Answers without tensors (ops/describe.cpp): the canonical string of a recipe, the recipes'
  // names, "alias=canonical" of each alias, "key=value" lines about a device.
  m.def("canonical_recipe(str recipe) -> str");
  m.def("recipe_names() -> str[]");
  m.def("recipe_aliases() -> str[]");
  m.def("describe_device(Device device) -> str[]");
}
