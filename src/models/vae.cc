// A variational autoencoder on small images: a regression with a loss summed over pixels.
// Source: D. P. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014, appendices B
// and C.2; a Gaussian decoder of unit variance. The noise is an input, equal in all lanes.
//
//   loss = (1/2 sum (x - decoded)^2 + 1/2 sum (mean^2 + exp(log_var) - 1 - log_var)) / N
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("vae");
  const Value images = add_images(b, shape);
  const int64_t latent = shape.whole("latent"), hidden = shape.whole("hidden");
  const Value noise = b.input("noise", {{shape.batch, latent}, ElementType::kFloat});

  const Value x = b.flatten("flatten", images);  // (N,784)
  const int64_t pixels = b.shape_of(x)[1];
  const Value encoded = b.relu("encoder.relu", b.linear("encoder.fc", x, hidden));
  const Value mean = b.linear("encoder.mean", encoded, latent);
  const Value log_var = b.linear("encoder.log_var", encoded, latent);

  const Value deviation = b.op("exp", {b.scaled("sample", log_var, 0.5)}, {}, "sample");
  Value z = b.op("mul", {deviation, noise}, {}, "sample");
  z = b.op("add", {mean, z}, {}, "sample");  // (N,20)
  const Value decoded =
      b.linear("decoder.out", b.relu("decoder.relu", b.linear("decoder.fc", z, hidden)), pixels);

  const double per_example = 0.5 / static_cast<double>(shape.batch);
  const Value squares =
      b.op("mse_loss", {decoded, x}, {{"reduction", std::string("sum")}}, "loss.reconstruction");
  const Value reconstruction = b.scaled("loss.reconstruction", squares, per_example);

  const std::string kl = "loss.kl";
  Value terms = b.op("mul", {mean, mean}, {}, kl);
  terms = b.op("add", {terms, b.op("exp", {log_var}, {}, kl)}, {}, kl);
  terms = b.op("sub", {terms, log_var}, {}, kl);
  terms = b.op("sub", {terms}, {{"scalar", 1.0}}, kl);
  const Value divergence =
      b.scaled(kl, b.op("sum", {terms}, {{"dims", Shape{0, 1}}}, kl), per_example);

  b.name_output("loss/reconstruction", reconstruction);
  b.name_output("loss/kl", divergence);
  return finish_model(b, b.op("add", {reconstruction, divergence}, {}, "loss"), training);
}

}  // namespace

Model vae_model() {
  return {
      .name = "vae",
      .help =
          "encoder and decoder of one hidden layer, Gaussian latent; squared error + "
          "divergence",
      .source = "Kingma & Welling, ICLR 2014, appendices B and C.2",
      .default_data = "synthetic",
      .sizes = {{"hidden", 400, "units of the hidden layers"}, {"latent", 20, "latent numbers"}},
      .build = &build};
}

}  // namespace lockstep
