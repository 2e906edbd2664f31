#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/nn/linear.h"
#include "octavo/nn/weight_amax.h"
#include "octavo/train/config.h"
#include "octavo/train/data.h"
#include "octavo/train/graphed_work.h"
#include "octavo/train/optimizer.h"

namespace octavo::train {

/// What one step came to, read from the device (TrainStep::run).
struct StepFigures {
  double loss = 0.0;           ///< mean over the micro-batches, cross-entropy alone
  double gradient_norm = 0.0;  ///< before clipping
  double aux_loss = 0.0;       ///< mean over the micro-batches; 0 in a dense model
  /// Tokens of the busiest expert over the mean, of the block where that is largest; 0 in a dense
  /// model.
  double expert_load = 0.0;

  /// Waits for the device. figures: TrainStep::run()'s.
  static StepFigures read(const at::Tensor& figures);
};

/// One optimiser step: forward and backward of the micro-batches, the gradients' norm, AdamW with
/// the factor that clips them, the routers' biases. Everything it computes stays on the device, and
/// it waits for nothing: who wants to know the loss reads it when it suits.
///
/// A step whose loss or gradient norm is not finite, and every step after it, leaves parameters,
/// moments and biases as they were: the factor is NaN then, which AdamW takes no step with. So a
/// figure may be read many steps late and the parameters are still those before.
///
/// The model's gradients are this step's own (nn::accumulate_gradients()): from the second
/// micro-batch on FP8 linears add to them in the product, with gradients_in_place all linears, the
/// head and the embedding from the first.
///
/// The amax of a weight with one scale for all of it comes from the AdamW step before
/// (nn::track_weight_amaxes()): the same bits, a read less. Whoever changes weights between steps
/// is noticed (nn::WeightAmax), before replays too.
///
/// A step that is dropped before its last micro-batch leaves nothing: the next one, or another
/// process that goes on from here, has the bits it would have had without it (nothing in a model
/// draws random numbers).
///
/// With cuda_graph the whole step is captured after two eager ones and replayed from then on, from
/// the same memory, with the same bits under the same plan. Batches must keep their sizes, and the
/// model, its recipes and its checkpointing must stay as they are. All micro-batches are read, to
/// the device, before the graph begins, and what has begun cannot be dropped.
class TrainStep {
 public:
  struct Options {
    double clip_norm = 1.0;          ///< 0: no clipping
    bool cuda_graph = false;         ///< on a GPU
    bool gradients_in_place = true;  ///< nn::put_gradients_in_place()
    /// AdamW finds the amaxes of weights that the next step scales as a whole.
    bool weight_amaxes = true;

    static Options of(const TrainConfig& config);
  };
  /// `optimizer` steps the model's parameters and outlives this. Errors: cuda_graph where the model
  /// is not on a GPU.
  TrainStep(models::Llama model, AdamW& optimizer, const Options& options);

  /// The step, of A micro-batches (B, T) int64, on the CPU or the model's device, of which each
  /// counts 1 / A; each is read when those before it have been queued. Gives (4) fp64 on the
  /// model's device, for StepFigures::read(); nothing where a read dropped the step. Errors: those
  /// of the model's loss() and of the reads.
  /// `health`: filled with Fp8Sampler::layers() of the first micro-batch, by an eager step that
  /// waits for the device.
  std::optional<at::Tensor> run(const MicroBatches& batches, double lr,
                                nlohmann::ordered_json* health = nullptr);

 private:
  std::optional<at::Tensor> step(const MicroBatches& batches, nlohmann::ordered_json* health);
  std::optional<at::Tensor> graphed_step(const MicroBatches& batches);

  models::Llama model_;
  AdamW& optimizer_;
  Options options_;
  std::vector<nn::LinearImpl*> tracked_;  // by nn::track_weight_amaxes()
  nn::WeightAmaxes amaxes_;               // theirs
  std::vector<Batch> graphed_;            // on the device, where the graph reads them
  /// 0, or NaN from the first step on that was not finite: added to the clipping factor.
  at::Tensor health_;
  std::unique_ptr<GraphedWork> graph_;
};

}  // namespace octavo::train
