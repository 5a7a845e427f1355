// What do the built-in models share, and which function makes each one's row?
// A new model is one file that defines its row's function, one declaration here and one line in
// model_list.cc.
#pragma once

#include "src/graph/builder.h"
#include "src/train/models/model.h"

namespace lockstep {

Model mlp_model();
Model lenet_model();

struct ImageInputs {
  Value images, labels;
};

// The inputs of an image classifier, by the names data sets use: "images" (N,C,H,W), "labels" (N).
ImageInputs add_image_inputs(GraphBuilder& builder, const ModelShape& shape);

// Names the logits (N,classes), adds the mean cross entropy as layer "loss" and hands the graph
// over, in torch.nn's train() or eval() mode.
Graph finish_classifier(GraphBuilder& builder, const Value& logits, const Value& labels,
                        bool training);

}  // namespace lockstep
