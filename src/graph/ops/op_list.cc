// The list of op files, in the order of `lockstep list ops`. Each file NAME.cc defines its rows
// (the forward op and its backward ops) as NAME_ops().
#include <array>

#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/graph/op.h"

#define LOCKSTEP_OP_FILES(file)                                                                    \
  file(linear) file(matmul) file(addmm) file(conv2d) file(conv_transpose2d) file(batch_norm)       \
      file(layer_norm) file(rms_norm) file(group_norm) file(relu) file(max_pool2d)                 \
          file(avg_pool2d) file(adaptive_avg_pool2d) file(upsample2d) file(add) file(mul)          \
              file(binary) file(unary) file(pow) file(compare) file(where) file(cast)              \
                  file(composed_border) file(custom_gradient) file(dropout) file(sum_to) file(sum) \
                      file(amax) file(var_mean) file(cumsum) file(logsumexp) file(reshape)         \
                          file(permute) file(expand) file(slice) file(cat) file(pad)               \
                              file(pixel_shuffle) file(gather) file(index_select) file(embedding)  \
                                  file(softmax) file(cross_entropy) file(pointwise_loss)           \
                                      file(sdpa) file(recurrent) file(prelu) file(decision)        \
                                          file(atan2) file(scatter_amax) file(grid_sample)         \
                                              file(ctc_loss) file(roi_align)

namespace lockstep {

#define LOCKSTEP_DECLARE(name) std::vector<OpDef> name##_ops();
LOCKSTEP_OP_FILES(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::span<const OpDef> ops() {
  static const std::vector<OpDef> all = [] {
    std::vector<OpDef> rows;
#define LOCKSTEP_APPEND(name) \
  for (OpDef & row : name##_ops()) rows.push_back(std::move(row));
    LOCKSTEP_OP_FILES(LOCKSTEP_APPEND)
#undef LOCKSTEP_APPEND
    return rows;
  }();
  return all;
}

const OpDef& find_op(std::string_view name) {
  return find_row("op", name, ops());
}

std::string_view to_string(CastClass cast_class) {
  constexpr std::array<std::string_view, 4> kNames = {"low_precision", "fp32", "promote", "follow"};
  return kNames.at(static_cast<size_t>(cast_class));
}

}  // namespace lockstep
