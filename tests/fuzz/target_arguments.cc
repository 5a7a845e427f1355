// Commands with arguments of any kind, one a line.
#include "src/core/text.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/target_functions.h"

namespace lockstep::fuzz {
namespace {

void run_words(const std::string& command, std::string_view input, const Place& place,
               const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {command};
  for (const std::string& word : split(input, '\n')) arguments.push_back(word);
  arguments.insert(arguments.end(), more.begin(), more.end());
  run_program(arguments, place);
}

}  // namespace

Seeds round_seeds() {
  return {"0.1\n--format\nfp16", "0x3c00\n--format\nfp8_e4m3\n--rounding\nstochastic\n--random\n77",
          "1\n2\n3e5\n--format\nmxfp8_e4m3", "0x1.8p-3\n--format\ne5m2",
          "--format\nnvfp4\n--tensor-scale\n0.5\n--\n-inf\nnan\n1"};
}
void run_round(std::string_view input, const Place& place) {
  run_words("round", input, place);
}

Seeds dot_seeds() {
  return {"1,2,3\n4,5,6\n--accumulator\nhopper_fp16",
          "0x3c00,0x4000\n1,1\n0.5\n--accumulator\nfp32\n--format\nfp16,fp16",
          "1\n1\n--accumulator\nhopper_fp8_mma\n--format\nfp8_e4m3,fp8_e5m2"};
}
void run_dot(std::string_view input, const Place& place) {
  run_words("dot", input, place);
}

Seeds explain_seeds() {
  return {"mlp\n--data\nsynthetic:50\n--policy\npure-fp16\n--size\nhidden1=2,hidden2=2\n--batch\n1",
          "mlp\n--policy\ntf32@hopper\n--json\n--data\nsynthetic:50",
          "vae\n--policy\nfp8-current\n--backward\nper-loss\n--data\nsynthetic:50",
          "lstm\n--policy\ntorch-autocast-bf16\n--size\nlayers=1,hidden=4\n--data\ngrammar:10000"};
}
void run_explain(std::string_view input, const Place& place) {
  run_words("explain", input, place);
}

// The last arguments are refused together with all others, after the run was set up.
Seeds replay_seeds() {
  const std::string mlp = "mlp\n--data\nsynthetic:50\n";
  return {mlp + "--lanes\nfp32,tf32\n--steps\n3\n--optimizer\nadamw\n--lr\n1e-3",
          mlp + "--size\nhidden1=2\n--group\nfc*:lr=1\n--schedule\ncosine:warmup=5\n--freeze\nfc1",
          mlp + "--seeds\n3\n--twins\n2\n--clip-norm\n1.5\n--clip-norm-type\ninf\n--eval-every\n5",
          mlp + "--rewrite\neps:n1=1\n--workers\n2\n--accumulate\n2\n--nudge\n9\n--batch\n4",
          mlp + "--save-values\nx.npy\n--at\n1 fp32 #3\n--histogram-every\n7\n--mode\nsynced",
          "gpt\n--size\nlayers=1,width=8,heads=2,context=4\n--data\ngrammar:10000\n--eval-"
          "policy\nfp32"};
}
void refuse_replay(std::string_view input, const Place& place) {
  run_words("replay", input, place, {"-o", place.folder, "--captured-order", "0"});
}

}  // namespace lockstep::fuzz
