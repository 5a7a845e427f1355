// The keys of `recommend --json`.
#pragma once

#include "reports/advice/advice_text.h"
#include "reports/writers/json_keys.h"

namespace lockstep {

struct Answered {
  const Advice& advice;
  const AdviceFacts& facts;
};
const JsonObject<Answered>& json_object(const Answered*);

}  // namespace lockstep
