// See format_assignment.h.
#include "analysis/candidates/format_assignment.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>

namespace lockstep {
namespace {

// A partial choice: the option of the last layer, and the partial choice before it.
struct Link {
  size_t option;
  int64_t before;
};
struct Partial {
  double cost, score;
  int64_t link;
};

using Sides = std::map<size_t, int>;  // of open layers

// The last later end of a layer's edges; the layer itself if it has none.
std::vector<size_t> last_ends(const std::vector<CastEdge>& edges, size_t layers) {
  std::vector<size_t> last(layers);
  for (size_t i = 0; i < layers; ++i) last[i] = i;
  for (const CastEdge& edge : edges) last[edge.from] = std::max(last[edge.from], edge.to);
  return last;
}

// Leaves out the cheapest edges until nowhere more than kMostOpenLayers are open.
std::vector<CastEdge> narrow_enough(std::vector<CastEdge> edges, size_t layers) {
  std::ranges::sort(edges, std::greater{}, &CastEdge::cost);
  for (;;) {
    const std::vector<size_t> last = last_ends(edges, layers);
    size_t most = 0;
    for (size_t at = 0; at < layers; ++at) {
      size_t open = 0;
      for (size_t i = 0; i <= at; ++i) open += last[i] > at;
      most = std::max(most, open);
    }
    if (most <= kMostOpenLayers) return edges;
    edges.pop_back();
  }
}

// Keeps what nothing else beats in both score and cost; of too many, every second one.
void keep_best(std::vector<Partial>& partials) {
  std::ranges::sort(partials, [](const Partial& a, const Partial& b) {
    return a.score != b.score ? a.score < b.score : a.cost < b.cost;
  });
  std::vector<Partial> kept;
  for (const Partial& one : partials) {
    if (kept.empty() || one.cost < kept.back().cost) kept.push_back(one);
  }
  while (kept.size() > kMostPartials) {
    std::vector<Partial> fewer;
    for (size_t i = 0; i + 1 < kept.size(); i += 2) fewer.push_back(kept[i]);
    fewer.push_back(kept.back());
    kept = std::move(fewer);
  }
  partials = std::move(kept);
}

}  // namespace

Assignment priced(const AssignmentProblem& problem, std::vector<size_t> choice) {
  Assignment out;
  const auto option = [&](size_t layer) { return problem.layers[layer][choice[layer]]; };
  for (size_t i = 0; i < choice.size(); ++i) {
    out.cost += option(i).cost;
    out.score += option(i).score;
  }
  for (const CastEdge& edge : problem.edges) {
    if (option(edge.from).side != option(edge.to).side) out.cost += edge.cost;
  }
  out.choice = std::move(choice);
  return out;
}

std::vector<Assignment> assignment_frontier(const AssignmentProblem& problem) {
  const size_t count = problem.layers.size();
  const std::vector<CastEdge> edges = narrow_enough(problem.edges, count);
  const std::vector<size_t> last = last_ends(edges, count);

  std::vector<Link> links;
  std::map<Sides, std::vector<Partial>> states{{{}, {{0, 0, -1}}}};
  for (size_t layer = 0; layer < count; ++layer) {
    std::map<Sides, std::vector<Partial>> next;
    for (const auto& [sides, partials] : states) {
      for (size_t o = 0; o < problem.layers[layer].size(); ++o) {
        const FormatOption& option = problem.layers[layer][o];
        double cost = option.cost;
        for (const CastEdge& edge : edges) {
          if (edge.to == layer && sides.at(edge.from) != option.side) cost += edge.cost;
        }
        Sides open;
        for (const auto& [other, side] : sides) {
          if (last[other] > layer) open.emplace(other, side);
        }
        if (last[layer] > layer) open.emplace(layer, option.side);
        std::vector<Partial>& into = next[open];
        for (const Partial& partial : partials) {
          links.push_back({o, partial.link});
          into.push_back({partial.cost + cost, partial.score + option.score,
                          static_cast<int64_t>(links.size()) - 1});
        }
      }
    }
    for (auto& [open, partials] : next) keep_best(partials);
    states = std::move(next);
  }

  std::vector<Assignment> frontier;
  for (const Partial& partial : states.begin()->second) {
    std::vector<size_t> choice(count);
    int64_t link = partial.link;
    for (size_t i = count; i-- > 0; link = links[static_cast<size_t>(link)].before) {
      choice[i] = links[static_cast<size_t>(link)].option;
    }
    frontier.push_back(priced(problem, std::move(choice)));
  }
  return frontier;
}

}  // namespace lockstep
