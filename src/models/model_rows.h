// Functions that the built-in models share. A new model is one file that defines its row's
// function, and its name in the list of model_list.cc.
#pragma once

#include "src/graph/builder.h"
#include "src/models/model.h"

namespace lockstep {

// The input of an image model, "images" (N,C,H,W). Throws: InputError unless the data are images.
Value add_images(GraphBuilder& builder, const ModelShape& shape);
// The inputs of a text model, under the names that data sets use.
Value add_tokens(GraphBuilder& builder, const ModelShape& shape, int64_t context);  // (B,T)
Value add_labels(GraphBuilder& builder, Shape shape);

// Names logits (N,C) or (N,C,...) and labels, adds their mean cross entropy (over labels other than
// kNoLabel) as layer `layer`.
Value classify(GraphBuilder& builder, const std::string& layer, const Value& logits,
               const Value& labels);

// Sets the loss and returns the graph, in torch.nn's train() or eval() mode.
Graph finish_model(GraphBuilder& builder, const Value& loss, bool training);

}  // namespace lockstep
