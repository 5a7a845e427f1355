// The parts of a policy for which torch has no words, as sentences.
// Each part is compared with the preset that models what torch does by itself. Knows nothing of
// layers, rules, op lists or [scaling].
#pragma once

#include <string>
#include <vector>

#include "src/policy/policy.h"

namespace lockstep {

// `torch`: the preset that models torch's own behaviour under the same autocast.
void add_unsaid_numerics(const Policy& policy, const Policy& torch,
                         std::vector<std::string>& unsaid);
// How the policy's loss scaler differs from a GradScaler with its numbers.
void add_unsaid_loss_scale(const Policy& policy, std::vector<std::string>& unsaid);

}  // namespace lockstep
