// Turns a step graph and a policy into a program to execute.
// Lowering makes every cast explicit. A program is a straight list of instructions; executing it
// needs no further decision.
//
//   forward op      operands cast by the op's class (autocast), or not cast; result rounded once
//                   to the output format
//   backward op     runs in the formats its forward partner ran in: gradients of an output in the
//                   output's format, saved operands as the forward op saw them (the same cast),
//                   each result rounded to the format of the operand it is the gradient of
//   gradient add    in the format of the value it is the gradient of (a parameter used in one
//                   format only: in that format, since torch sums on the cached cast, unless the
//                   policy has no weight_cache)
//   scaled operand  ([scaling]) the operand as its class casts it, a parameter as it is stored, is
//                   multiplied by its scale and rounded; block formats once per axis of summation
// A value is cast to a format once per step; later consumers reuse the cast.
#pragma once

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/lower/program.h"
#include "src/policy/policy.h"

namespace lockstep {

// `step` is a step graph, or a forward graph (evaluation); `sites` is its table, from make_sites.
// Rules that match nothing are an error on a step graph only: an evaluation graph lacks the
// backward half.
// `container_is_fp64`: the truth lane; every format becomes fp64 and no cast remains.
// Throws: InputError listing every rule that matches nothing here nor in the other graphs that
// share `sites`, and every value that a buffer cannot hold.
Program lower(const Graph& step, const SiteTable& sites, const Policy& policy,
              bool container_is_fp64 = false);

}  // namespace lockstep
