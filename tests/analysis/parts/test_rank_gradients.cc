// Gradients of two ranks: means, sums, blocks, and what is off.
#include "analysis/parts/rank_gradients.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

CapturedPart part(int64_t rank, std::vector<float> own) {
  CapturedPart made;
  made.module = "blocks.0";
  made.rank = rank;
  made.world_size = 2;
  made.gradients["w"] = Tensor::from<float>({2, 2}, own);
  return made;
}

// The ranks have gradients 1 2 3 4 and 3 2 1 0.
std::vector<CapturedPart> two_ranks() {
  return {part(0, {1, 2, 3, 4}), part(1, {3, 2, 1, 0})};
}

TEST_CASE("rank_gradients: the mean over the ranks, whole on each") {
  std::vector<CapturedPart> parts = two_ranks();
  for (CapturedPart& p : parts) {
    p.run_gradients["w"] = {Tensor::from<float>({2, 2}, {2, 2, 2, 2}), {}};
  }
  const RankGradients found = compare_rank_gradients(parts);
  CHECK(found.ranks == 2);
  CHECK(found.tensors == 2);
  CHECK(found.off == 0);
  CHECK_FALSE(found.is_sum);
}

TEST_CASE("rank_gradients: a block of rows, and one of columns") {
  std::vector<CapturedPart> parts = two_ranks();
  parts[0].gradients["w"] = Tensor::from<float>({2, 2}, {1, 2, 3, 8});
  parts[0].run_gradients["w"] = {Tensor::from<float>({1, 2}, {2, 4}), {1, 0}};
  parts[1].run_gradients["w"] = {Tensor::from<float>({2, 1}, {2, 4}), {0, 1}};
  CHECK(compare_rank_gradients(parts).off == 0);
  parts[1].run_gradients["w"] = {Tensor::from<float>({2, 1}, {2, 5}), {0, 1}};
  const RankGradients found = compare_rank_gradients(parts);
  CHECK(found.off == doctest::Approx(1 / std::sqrt(29.0)));
  CHECK(found.where == "w on rank 1");
}

TEST_CASE("rank_gradients: sums differ from means, and a fault is larger than rounding") {
  std::vector<CapturedPart> parts = two_ranks();
  parts[0].run_gradients["w"] = {Tensor::from<float>({2, 2}, {4, 4, 4, 4}), {}};
  CHECK(compare_rank_gradients(parts).is_sum);
  CHECK(compare_rank_gradients(parts).off == 0);
  parts[0].run_gradients["w"] = {Tensor::from<float>({2, 2}, {1, 2, 3, 4}), {}};  // not reduced
  CHECK(compare_rank_gradients(parts).off > kReductionRounding);
}

TEST_CASE("rank_gradients: other columns of a split layer are apart") {
  std::vector<CapturedPart> parts = two_ranks();
  for (CapturedPart& p : parts) {
    p.own_columns = p.rank == 0 ? "S(0) of 2 as rank 0" : "S(0) of 2 as rank 1";
    p.run_gradients["w"] = {p.gradients["w"], {}};
  }
  CHECK(compare_rank_gradients(parts).off == 0);
  CHECK(compare_rank_gradients(parts).tensors == 2);
}

TEST_CASE("rank_gradients: ranks of different runs are refused") {
  std::vector<CapturedPart> parts = two_ranks();
  parts[1].gradients["w"] = Tensor::from<float>({2}, {1, 2});
  parts[0].run_gradients["w"] = {parts[0].gradients["w"], {}};
  CHECK_THROWS_AS(compare_rank_gradients(parts), InputError);
}

}  // namespace
}  // namespace lockstep
