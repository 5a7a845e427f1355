// The knapsack against all choices of small random problems.
#include "analysis/candidates/format_assignment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

using namespace lockstep;

namespace {

AssignmentProblem random_problem(std::mt19937& random) {
  std::uniform_int_distribution<size_t> layers(1, 7), options(1, 3);
  std::uniform_real_distribution<double> number(0, 1);
  AssignmentProblem problem;
  problem.layers.resize(layers(random));
  for (auto& layer : problem.layers) {
    layer.resize(options(random));
    for (FormatOption& option : layer) {
      option = {number(random), number(random), number(random) < 0.5 ? 0 : 1};
    }
  }
  for (size_t from = 0; from < problem.layers.size(); ++from) {
    for (size_t to = from + 1; to < problem.layers.size(); ++to) {
      if (number(random) < 0.4) problem.edges.push_back({from, to, 0.3 * number(random)});
    }
  }
  return problem;
}

std::vector<Assignment> all_choices(const AssignmentProblem& problem) {
  std::vector<Assignment> all;
  std::vector<size_t> choice(problem.layers.size(), 0);
  for (;;) {
    all.push_back(priced(problem, choice));
    size_t at = 0;
    while (at < choice.size() && ++choice[at] == problem.layers[at].size()) choice[at++] = 0;
    if (at == choice.size()) return all;
  }
}

double cheapest(const std::vector<Assignment>& choices, double limit) {
  double cost = std::numeric_limits<double>::infinity();
  for (const Assignment& one : choices) {
    if (one.score <= limit) cost = std::min(cost, one.cost);
  }
  return cost;
}

}  // namespace

TEST_CASE("for every limit of the score the frontier has the cheapest of all choices") {
  std::mt19937 random(7);
  size_t points = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const AssignmentProblem problem = random_problem(random);
    const std::vector<Assignment> all = all_choices(problem);
    const std::vector<Assignment> frontier = assignment_frontier(problem);
    for (const Assignment& one : all) {
      CHECK(cheapest(frontier, one.score + 1e-12) <= cheapest(all, one.score) + 1e-12);
    }
    for (size_t i = 0; i < frontier.size(); ++i) {
      CHECK(frontier[i].cost >= cheapest(all, frontier[i].score) - 1e-12);
      if (i > 0) CHECK(frontier[i].score > frontier[i - 1].score);
    }
    points += frontier.size();
  }
  CHECK(points > 400);
}

TEST_CASE("casts join layers: alone in fp32 costs more than both") {
  // Two layers read each other's values; fp32 (side 1) costs 1 more, a cast 3.
  AssignmentProblem problem;
  problem.layers = {{{1, 1, 0}, {2, 0, 1}}, {{1, 1, 0}, {2, 0, 1}}};
  problem.edges = {{0, 1, 3}};
  const std::vector<Assignment> frontier = assignment_frontier(problem);
  REQUIRE(frontier.size() == 2);  // not the mixed ones, of cost 6 and score 1
  CHECK(frontier[0].choice == std::vector<size_t>{1, 1});
  CHECK(frontier[0].cost == 4);
  CHECK(frontier[1].choice == std::vector<size_t>{0, 0});
}

TEST_CASE("with more open layers than are remembered, the cheapest edges are left out") {
  AssignmentProblem problem;
  const size_t count = kMostOpenLayers + 3;
  problem.layers.assign(count, {{1, 1, 0}, {2, 0, 1}});
  for (size_t i = 0; i + 1 < count; ++i) problem.edges.push_back({i, count - 1, 0.1});
  const std::vector<Assignment> frontier = assignment_frontier(problem);
  CHECK(frontier.front().score == 0);
  CHECK(frontier.back().cost == doctest::Approx(static_cast<double>(count)));
}

TEST_CASE("one large score hides none of the small ones") {
  AssignmentProblem problem;
  for (const double score : {1e4, 1e-3, 1e-2, 0.1, 0.5}) {
    problem.layers.push_back({{1, score, 0}, {2, 0, 1}});
  }
  CHECK(assignment_frontier(problem).size() == 6);
}
