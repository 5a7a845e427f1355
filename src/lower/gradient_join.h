// How the addends of one gradient are summed.
// If a value has several consumers, the backward pass has an `add` of gradients, a join. A join
// has no formats of its own: its sum is in the format of the value whose gradient it is.
#pragma once

#include "src/lower/gradient_scales.h"
#include "src/lower/inputs.h"
#include "src/lower/model_border.h"
#include "src/lower/node_instructions.h"
#include "src/lower/program_builder.h"

namespace lockstep {

bool is_join(const Graph& graph, const Node& node);

void lower_join(const Node& join, const LowerInputs& in, const ModelBorder& border,
                const ProgramBuilder& builder, LayerScales& scales, OpLowering& ops);

}  // namespace lockstep
