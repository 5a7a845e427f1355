// Spreads work over threads, with one pool per process. Work is cut at fixed places that do not
// depend on the number of threads, so results do not either. There are two levels: tasks (lanes),
// and within each task the loops of its operators. Threads that find no task left help with loops;
// those that find nothing stay awake for 200 microseconds, which counts as CPU time.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep {

// Default: the hardware's thread count. Requires: 1 <= count <= 256 (InputError otherwise); not
// called from a body.
void set_thread_count(int count);
int thread_count();

// Calls body(i) once for every i in [0, count), on any thread, in any order; returns when all are
// done. The first exception thrown by a body is rethrown here. A parallel_for called from a body
// runs on that body's thread alone.
void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

// The same for a few long pieces: a parallel_for called from one of them shares the idle threads.
// Bodies must not assume that they run at the same time.
void parallel_tasks(int64_t count, const std::function<void(int64_t)>& body);

}  // namespace lockstep
