#include "octavo/train/config.h"
#include "tests/error_of.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace octavo::train {
namespace {

using testing::error_of;

std::string make_error(const std::vector<std::pair<std::string, std::string>>& options) {
  return error_of([&] {
    std::vector<ConfigSetting> settings;
    for (const auto& [key, text] : options) settings.push_back(setting_from_text(key, text));
    make_config(settings);
  });
}

std::filesystem::path write_file(const std::string& text) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("octavo_config_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << text;
  return path;
}

std::string file_error(const std::string& text) {
  const std::filesystem::path path = write_file(text);
  const std::string error = error_of([&] { read_config_file(path); });
  std::filesystem::remove(path);
  return error;
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "text: " << (text) << "\npart: " << (part)

TEST(Config, DefaultsAreValidAndTheirPresetsSizes) {
  const TrainConfig config = make_config({});
  EXPECT_EQ(config.preset, "debug");
  EXPECT_EQ(config.model.dim, models::llama_preset("debug").dim);
  EXPECT_EQ(config.steps, TrainConfig{}.steps);
}

TEST(Config, EveryPresetIsValid) {
  for (const std::string& preset : models::llama_preset_names()) {
    EXPECT_EQ(make_error({{"preset", preset}}), "no error") << preset;
  }
}

TEST(Config, PrecedenceIsDefaultsPresetFileCommandLine) {
  const std::string preset = models::llama_preset_names().back();
  const std::filesystem::path path = write_file(R"({"layers": 3, "steps": 11, "dim": 512})");
  std::vector<ConfigSetting> settings = read_config_file(path);
  settings.push_back(setting_from_text("dim", "1024"));
  settings.push_back(setting_from_text("preset", preset));  // last, and still below the file
  const TrainConfig config = make_config(settings);
  EXPECT_EQ(config.preset, preset);
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.dim, 1024);
  EXPECT_EQ(config.model.hidden, models::llama_preset(preset).hidden);
  EXPECT_EQ(config.steps, 11);
  std::filesystem::remove(path);
}

TEST(Config, JsonRoundTripsEveryKey) {
  std::vector<ConfigSetting> settings = {setting_from_text("lr", "0.1"),
                                         setting_from_text("seed", "18446744073709551615"),
                                         setting_from_text("beta2", "0.999"),
                                         setting_from_text("run-dir", "a \"b\"/c\u00e9"),
                                         setting_from_text("filter_fqns", "lm_head,layers.0."),
                                         setting_from_text("recipe", "mxfp8"),
                                         setting_from_text("resume", "true")};
  const TrainConfig config = make_config(settings);
  EXPECT_EQ(config.seed, 18446744073709551615u);
  EXPECT_EQ(config.filter_fqns, (std::vector<std::string>{"lm_head", "layers.0."}));
  const std::filesystem::path path = write_file(to_json(config));
  const TrainConfig again = make_config(read_config_file(path));
  EXPECT_EQ(to_json(again), to_json(config));
  for (const ConfigKey& key : config_keys()) {
    EXPECT_EQ(key.get(again), key.get(config)) << key.name;
  }
  std::filesystem::remove(path);
}

TEST(Config, EveryKeyIsDocumentedAndReadsWhatItWrites) {
  for (const ConfigKey& key : config_keys()) {
    EXPECT_FALSE(key.doc.empty() || key.group.empty() || key.type.empty()) << key.name;
    TrainConfig config;
    const nlohmann::json value = key.get(config);
    key.set(config, value);
    EXPECT_EQ(key.get(config), value) << key.name;
    // The one wrong type for each: an object fits none.
    EXPECT_CONTAINS(error_of([&] { key.set(config, nlohmann::json::object()); }), key.name);
  }
}

TEST(Config, MisspeltKeysNameTheNearest) {
  EXPECT_CONTAINS(make_error({{"bacth", "1"}}), "'batch'");
  EXPECT_CONTAINS(make_error({{"min-lr-fractoin", "1"}}), "'min_lr_fraction'");
  EXPECT_CONTAINS(make_error({{"sequnce", "1"}}), "'sequence'");
  EXPECT_CONTAINS(make_error({{"wamup_steps", "1"}}), "'warmup_steps'");
  const std::string error = file_error(R"({"stepz": 3})");
  EXPECT_CONTAINS(error, "'steps'");
  EXPECT_CONTAINS(error, ".json");  // and says where
}

TEST(Config, ValuesOfTheWrongTypeSayWhatIsExpected) {
  EXPECT_CONTAINS(make_error({{"batch", "eight"}}), "batch: expected an integer");
  EXPECT_CONTAINS(make_error({{"batch", "1.5"}}), "got 1.5");
  EXPECT_CONTAINS(make_error({{"batch", ""}}), "batch: expected an integer");
  EXPECT_CONTAINS(make_error({{"batch", "99999999999999999999"}}), "batch: expected");
  EXPECT_CONTAINS(make_error({{"seed", "-1"}}), "seed: expected an integer");
  EXPECT_CONTAINS(make_error({{"lr", "1e-3x"}}), "lr: expected a number");
  EXPECT_CONTAINS(make_error({{"lr", "nan"}}), "lr: expected a number");
  EXPECT_CONTAINS(make_error({{"resume", "maybe"}}), "resume: expected true or false");
  const std::filesystem::path path = write_file(R"({"steps": "many"})");
  const std::string error = error_of([&] { make_config(read_config_file(path)); });
  EXPECT_CONTAINS(
      error, "steps: expected an integer (at least 1 and at most 1000000000000), got \"many\"");
  EXPECT_CONTAINS(error, "(" + path.string() + ")");
  std::filesystem::remove(path);
}

TEST(Config, LongValuesAreCutInMessages) {
  const std::string error = make_error({{"steps", std::string(309, '9')}});
  EXPECT_CONTAINS(error, "steps: expected an integer");
  EXPECT_CONTAINS(error, "... (311 characters)");
  EXPECT_LT(error.size(), 250u);
}

TEST(Config, TextIsUtf8WithoutNul) {
  // Half of either name would be another folder.
  EXPECT_CONTAINS(make_error({{"run_dir",
                               "a\xff"
                               "b"}}),
                  "run_dir: expected text in UTF-8");
  EXPECT_CONTAINS(make_error({{"run_dir", std::string("a\0b", 3)}}),
                  "run_dir: expected text without a NUL");
  EXPECT_EQ(make_config({setting_from_text("run_dir", "läufe/α")}).run_dir, "läufe/α");
}

TEST(Config, SizesBeyondEveryMachineNameTheirKey) {
  for (const char* key :
       {"vocabulary", "dim", "layers", "heads", "kv_heads", "hidden", "max_sequence", "batch",
        "sequence", "accumulation", "steps", "threads"}) {
    EXPECT_CONTAINS(make_error({{key, "4000000000000"}}), std::string(key) + ": expected at least");
  }
  EXPECT_CONTAINS(make_error({{"threads", "4294967297"}}), "at most 1024, got 4294967297");
}

TEST(Config, AStepToResumeFromResumes) {
  EXPECT_TRUE(make_config({setting_from_text("resume_step", "4")}).resume);
  EXPECT_FALSE(make_config({setting_from_text("resume_step", "0")}).resume);
  EXPECT_CONTAINS(make_error({{"resume_step", "-1"}}), "resume_step: expected at least 0");
}

TEST(Config, NumbersMayBeWrittenInAnyUsualWay) {
  EXPECT_EQ(make_config({setting_from_text("steps", "1e3")}).steps, 1000);
  EXPECT_EQ(make_config({setting_from_text("lr", ".5")}).lr, 0.5);
  EXPECT_EQ(make_config({setting_from_text("lr", "+3E-4")}).lr, 3e-4);
  EXPECT_EQ(make_config({setting_from_text("filter_fqns", "")}).filter_fqns.size(), 0u);
}

TEST(Config, SizesThatDoNotDivideAreNamed) {
  const auto error = [](const std::string& dim, const std::string& heads,
                        const std::string& kv_heads) {
    return make_error({{"dim", dim}, {"heads", heads}, {"kv_heads", kv_heads}});
  };
  EXPECT_CONTAINS(
      error("256", "3", "3"),
      "heads is 3; it must divide dim, which is 256: set heads to 2 or 4, or change dim "
      "or give head_dim");
  EXPECT_CONTAINS(error("256", "4", "3"),
                  "kv_heads is 3; it must divide heads, which is 4: set kv_heads to 2 or 4, or "
                  "change heads");
  EXPECT_CONTAINS(error("256", "4", "8"), "which is 4: set kv_heads to 4, or change heads");
  EXPECT_CONTAINS(error("4", "4", "4"), "must be even");
  EXPECT_CONTAINS(make_error({{"sequence", "33"}, {"max_sequence", "32"}}),
                  "sequence: expected at most max_sequence, 32, got 33; shorten it");
}

TEST(Config, AMessageEndsWithWhatToDo) {
  EXPECT_CONTAINS(
      make_error({{"cuda_graph", "true"}}),
      "cuda_graph: expected false where device is cpu, got true; set device to cuda, or "
      "cuda_graph to false");
  EXPECT_CONTAINS(make_error({{"master_weights", "true"}}), "; set dtype to bfloat16, or");
  EXPECT_CONTAINS(make_error({{"keep_weight_transposed", "yes"}}),
                  "expected one of auto, on, off, got \"yes\"; octavo train --help says what "
                  "keep_weight_transposed is");
  EXPECT_CONTAINS(make_error({{"fusion", "maybe"}}),
                  "expected true or false, got \"maybe\"; octavo train --help says what fusion is");
  EXPECT_CONTAINS(make_error({{"balance", "even"}}), "; octavo train --help says what balance is");
}

TEST(Config, ExpertsComeFromAPresetOrFromKeys) {
  EXPECT_EQ(make_config({}).model.moe.experts, 0);
  const TrainConfig preset =
      make_config({setting_from_text("preset", "demo-moe"), setting_from_text("experts", "4")});
  EXPECT_EQ(preset.model.moe.experts, 4);
  EXPECT_EQ(preset.model.moe.top_k, models::llama_preset("demo-moe").moe.top_k);
  const TrainConfig keys =
      make_config({setting_from_text("experts", "4"), setting_from_text("router_score", "sigmoid"),
                   setting_from_text("weight-on", "input"), setting_from_text("balance", "bias"),
                   setting_from_text("select_fqns", "experts")});
  EXPECT_EQ(keys.model.moe.score, nn::RouterScore::kSigmoid);
  EXPECT_EQ(keys.model.moe.weight_on, models::WeightOn::kInput);
  EXPECT_EQ(keys.model.moe.balance, nn::LoadBalance::kBias);
  EXPECT_EQ(keys.select_fqns, (std::vector<std::string>{"experts"}));
  EXPECT_EQ(to_json(make_config(settings_of(keys, "here"))), to_json(keys));
  EXPECT_CONTAINS(make_error({{"balance", "luck"}}),
                  "balance: expected text (one of none, loss, bias), got \"luck\"");
  EXPECT_CONTAINS(make_error({{"experts", "4"}, {"top_k", "5"}}), "top_k is 5");
  EXPECT_CONTAINS(make_error({{"experts", "-1"}}), "experts: expected");
}

TEST(Config, RangesAreChecked) {
  const std::pair<std::string, std::string> bad[] = {
      {"batch", "0"},           {"steps", "-5"},      {"lr", "0"},
      {"lr", "1e999"},          {"beta1", "1"},       {"beta2", "-0.1"},
      {"min_lr_fraction", "2"}, {"clip_norm", "-1"},  {"validation_fraction", "0"},
      {"dtype", "float16"},     {"device", "tpu"},    {"keep_checkpoints", "0"},
      {"threads", "-1"},        {"flavour", "mi300"}, {"eval_recipe", "none"},
      {"run_dir", ""},          {"layers", "0"},      {"rope_theta", "0"}};
  for (const auto& [key, value] : bad) {
    EXPECT_CONTAINS(make_error({{key, value}}), key + ": expected");
  }
}

TEST(Config, FilesThatAreNoFlatObject) {
  EXPECT_CONTAINS(file_error("{\"steps\": 3,\n \"lr\" 4}"), "line 2");
  EXPECT_CONTAINS(file_error(""), "not JSON");
  EXPECT_CONTAINS(file_error("[1]"), "expected one flat JSON object");
  EXPECT_CONTAINS(file_error(R"({"steps": 3, "steps": 4})"), "given twice");
  EXPECT_CONTAINS(error_of([] { read_config_file("/no/such/file.json"); }), "cannot be read");
  EXPECT_CONTAINS(error_of([] { read_config_file("/tmp"); }), "cannot be read");
  for (const char* text : {"{\"steps\": 3,\n \"lr\" 4}", "", "[1]"})
    EXPECT_EQ(file_error(text).find('\n'), std::string::npos) << text;
}

TEST(Config, RecipeAndFlavourMakeOneRecipe) {
  TrainConfig config;
  EXPECT_FALSE(training_recipe(config).has_value());
  config.recipe = "rowwise";
  EXPECT_EQ(training_recipe(config)->flavour, FlavourChoice::kAuto);
  config.flavour = "fnuz";
  EXPECT_EQ(training_recipe(config)->flavour, FlavourChoice::kFNUZ);
  config.recipe = "rowwise(flavour=ocp)";
  EXPECT_CONTAINS(error_of([&] { training_recipe(config); }), "contradicts");
  const std::string unknown = make_error({{"recipe", "rowise"}});
  for (const std::string& name : recipe_names()) EXPECT_CONTAINS(unknown, name);
  EXPECT_CONTAINS(unknown, "high_precision");
  EXPECT_CONTAINS(make_error({{"recipe", "mxfp8"}, {"flavour", "fnuz"}}), "rowwise");
}

}  // namespace
}  // namespace octavo::train
