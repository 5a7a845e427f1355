// See outcome_words.h.
#include "reports/words/outcome_words.h"

namespace lockstep {

std::string_view shown_outcome(Verdict verdict) {
  return to_string(verdict == Verdict::kTooShort ? Verdict::kUnjudged : verdict);
}

std::string_view to_string(WhyUnjudged why) {
  switch (why) {
    case WhyUnjudged::kPart:
      return "only parts of a larger model ran. The loss of a part is the inner product of its "
             "output with the gradient that the run sent back: what a lane changes of it is, to "
             "first order, what the part's rounding does to the loss of the model";
    case WhyUnjudged::kSynced:
      return "in synced mode every lane starts each step from the reference's weights";
    case WhyUnjudged::kInference:
      return "these are forward passes alone, and nothing is trained";
    case WhyUnjudged::kRecordedUpdates:
      return "every lane takes PyTorch's recorded updates, whatever its own gradients are";
    case WhyUnjudged::kReferenceNotFinite:
      return "the reference's own loss is not finite";
    case WhyUnjudged::kShortCapture:
      return "so few recorded steps do not show whether training converges";
    case WhyUnjudged::kNotLearned:
      break;
  }
  return "the reference's loss fell by no more than its batch noise";
}

}  // namespace lockstep
