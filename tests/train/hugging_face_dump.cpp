// Asked by test_hugging_face.py for a folder's logits: the test below is skipped unless the
// environment names what to read and write.
//
//   OCTAVO_DUMP_INIT    folder, as the key `init` takes it
//   OCTAVO_DUMP_TOKENS  safetensors file with "tokens" (B, T) int64
//   OCTAVO_DUMP_LOGITS  safetensors file to write: "logits" (B, T, V) fp32

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "octavo/train/checkpoint.h"
#include "octavo/train/init.h"
#include "octavo/train/prepare.h"

namespace octavo::train {
namespace {

TEST(HuggingFaceDump, Logits) {
  const char *folder = std::getenv("OCTAVO_DUMP_INIT"), *tokens = std::getenv("OCTAVO_DUMP_TOKENS"),
             *output = std::getenv("OCTAVO_DUMP_LOGITS");
  if (folder == nullptr || tokens == nullptr || output == nullptr)
    GTEST_SKIP() << "run by test_hugging_face.py";
  std::vector<ConfigSetting> settings = init_settings(folder);
  settings.push_back(setting_from_text("sequence", "1"));
  PreparedModel prepared = prepare_model(make_config(settings));
  AdamW optimizer(module_parameters(*prepared.model), {});
  load_init(folder, prepared.model, optimizer);
  const c10::NoGradGuard no_grad;
  const at::Tensor logits = prepared.model->forward(SafetensorsFile(tokens).tensor("tokens"));
  write_safetensors(output, {{"logits", logits}});
}

}  // namespace
}  // namespace octavo::train
