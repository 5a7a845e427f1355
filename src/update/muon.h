// Muon: the average of gradients of a matrix, made orthogonal, is the direction of the step.
// Source: K. Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks";
// torch.optim.Muon.
#pragma once

#include "src/update/tensor_rule.h"

namespace lockstep {

// State 0: the average. The first axis is the matrix's rows, the others are its columns.
template <typename T>
void muon_step(const TensorStep<T>& step);

}  // namespace lockstep
