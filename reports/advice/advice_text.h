// The answer of `recommend` after a search: one sentence, what to paste into PyTorch, then what was
// run and why.
#pragma once

#include <string>

#include "analysis/ranges/scale_course.h"
#include "analysis/search/advice.h"
#include "analysis/search/proof.h"
#include "reports/writers/block.h"
#include "reports/writers/text_writer.h"

namespace lockstep {

struct AdviceFacts {
  std::string model;           // or the capture's path
  int64_t captured_steps = 0;  // of a capture that the search repeated; 0: none was repeated
  int64_t replays = 0, lanes = 0, measured = 0, read_again = 0;
  std::vector<std::string> not_tested;  // formats and choices that were not asked for
  std::string folder;                   // of the run files
  bool all = false;                     // the whole range table
  std::string module = "amp";           // that --emit writes, or would
  std::string emitted;                  // the kind of that module; "": none is written
  std::optional<Proof> proof;
  bool proof_orders = false;  // of a capture: its seeds are orders of batches
  std::string no_proof;       // why --prove has none; "": not asked for, or there is one
};

// The answer, and what the search went by: the frontier, the sensitivity of layers and roles. Both
// with charts; writers that draw nothing print their tables.
Blocks advice_blocks(const Advice& advice, const AdviceFacts& facts);
Blocks search_blocks(const Advice& advice);
std::string advice_text(const Advice& advice, const AdviceFacts& facts, const TextStyle& style);
std::string advice_json(const Advice& advice, const AdviceFacts& facts);
// The answer for a run file: nothing was run.
std::string ranges_json(const RangeTable& ranges, const std::vector<ScaleCourse>& courses,
                        const std::string& model, int64_t steps);
// "LANE: its loss scale should settle at 2^17 to 2^19, mostly 2^18; recorded: ..."
std::string scale_courses_text(const std::vector<ScaleCourse>& courses);
// The first sentence alone.
std::string answer_sentence(const Advice& advice, const AdviceFacts& facts);

}  // namespace lockstep
