// Plays a recorded run back: observers get the records that training gave, step by step, from a run
// finished or still being written. A tally is therefore written once, as an observer. on_start()
// and on_checkpoint() are not repeated. RunFile::step() says what files lack.
#pragma once

#include <span>
#include <vector>

#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// All steps in order; every column of these lanes is read once. In the records the lanes have the
// places that they have in the run; the other lanes' places are empty.
// `histograms`: whether to read exponent histograms where kept; they are most of a file.
// Cost: memory of one step of the lanes.
void play(const RunFile& run, std::span<const int> lanes, std::span<Observer* const> observers,
          bool histograms = false);
std::vector<int> every_lane(const RunFile& run);

// To one observer: all lanes, or the reference alone.
void play(const RunFile& run, Observer& observer);
void play_reference(const RunFile& run, Observer& observer);

}  // namespace lockstep
