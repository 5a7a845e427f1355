// What do the built-in models share, and which function makes each one's row?
// A new model is one file that defines its row's function, one declaration here and one line in
// model_list.cc.
#pragma once

#include "src/graph/builder.h"
#include "src/models/model.h"

namespace lockstep {

Model mlp_model();
Model lenet_model();
Model resnet20_model();
Model unet_model();
Model detector_model();
Model vae_model();
Model vit_model();
Model gpt_model();
Model bert_model();
Model lstm_model();

// The input of an image model, "images" (N,C,H,W). Throws: InputError unless the data are images.
Value add_images(GraphBuilder& builder, const ModelShape& shape);
// The inputs of a text model, by the names data sets use.
Value add_tokens(GraphBuilder& builder, const ModelShape& shape, int64_t context);  // (B,T)
Value add_labels(GraphBuilder& builder, Shape shape);

// Names logits (N,C) or (N,C,...) and labels, adds their mean cross entropy (over labels other than
// kNoLabel) as layer `layer`.
Value classify(GraphBuilder& builder, const std::string& layer, const Value& logits,
               const Value& labels);

// Sets the loss and hands the graph over, in torch.nn's train() or eval() mode.
Graph finish_model(GraphBuilder& builder, const Value& loss, bool training);

}  // namespace lockstep
