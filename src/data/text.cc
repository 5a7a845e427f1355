// Text, byte by byte. An example is a window of `context` characters; its labels are each one's
// successor, or the original characters at masked places. The vocabulary is the bytes that occur,
// in ascending order; the last tenth of the text is held out.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/random.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/data/draws.h"
#include "src/data/sources.h"

namespace lockstep {
namespace {

// The masked-token task: the rate of predicted places, and the tokens shown there.
// Source: J. Devlin et al., "BERT", NAACL 2019, section 3.1.
constexpr double kPredicted = 0.15, kShownMasked = 0.8, kShownRandom = 0.1;

class TextSet : public DataSet {
 public:
  TextSet(std::string name, std::string_view text, const DataRequest& request)
      : name_(std::move(name)), request_(request) {
    std::array<bool, 256> occurs{};
    for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
    std::array<int32_t, 256> id{};
    for (size_t byte = 0; byte < occurs.size(); ++byte) {
      if (occurs[byte]) id[byte] = static_cast<int32_t>(characters_++);
    }
    tokens_.reserve(text.size());
    for (const char c : text) tokens_.push_back(id[static_cast<unsigned char>(c)]);
    train_length_ = static_cast<int64_t>(tokens_.size()) * 9 / 10;
    const int64_t window = request.context + 1;
    const int64_t held = static_cast<int64_t>(tokens_.size()) - train_length_;
    if (request.context < 1 || held < window) {
      throw InputError("data '" + name_ + "': " + std::to_string(tokens_.size()) +
                           " characters, its last tenth must hold a window of " +
                           std::to_string(window),
                       "use a longer text or a smaller context");
    }
  }

  std::string describe() const override {
    return name_ + ": " + std::to_string(train_length_) + " characters train, " +
           std::to_string(static_cast<int64_t>(tokens_.size()) - train_length_) + " held-out, " +
           std::to_string(characters_) + " different ones, " +
           std::string(to_string(request_.task));
  }
  // Training windows start anywhere; held-out ones are adjacent.
  int64_t train_count() const override { return train_length_ - request_.context; }
  int64_t held_out_count() const override {
    return (static_cast<int64_t>(tokens_.size()) - train_length_ - 1) / request_.context;
  }
  Shape image_shape() const override { return {}; }
  int64_t class_count() const override { return characters_ + (masked() ? 1 : 0); }

  Batch gather(std::span<const int64_t> indices, uint64_t draw) const override {
    const int64_t batch = static_cast<int64_t>(indices.size()), length = request_.context;
    Tensor tokens({batch, length}, Container::kI32);
    Tensor labels({batch * length}, Container::kI32);
    int32_t* token = tokens.as<int32_t>().data();
    int32_t* label = labels.as<int32_t>().data();
    for (int64_t i = 0; i < batch; ++i, token += length, label += length) {
      const int64_t start = start_of(indices[static_cast<size_t>(i)]);
      const int32_t* text = tokens_.data() + start;
      std::copy_n(text, length, token);
      if (masked()) {
        mask(text, draw, start, token, label);
      } else {
        std::copy_n(text + 1, length, label);
      }
    }
    Batch result;
    result.emplace("tokens", std::move(tokens));
    result.emplace("labels", std::move(labels));
    return result;
  }

 private:
  bool masked() const { return request_.task == Task::kMaskedToken; }

  int64_t start_of(int64_t index) const {
    if (index < 0 || index >= train_count() + held_out_count()) {
      throw std::out_of_range(name_ + ": example " + std::to_string(index));
    }
    const int64_t held = index - train_count();
    return held < 0 ? index : train_length_ + held * request_.context;
  }

  // Keyed by (seed, draw, start); the number of the mask token is the last of the vocabulary.
  void mask(const int32_t* text, uint64_t draw, int64_t start, int32_t* token,
            int32_t* label) const {
    const RandomStream random(request_.seed, RandomPurpose::kMaskedTokens,
                              static_cast<uint32_t>(start));
    const uint64_t first = draw * static_cast<uint64_t>(request_.context);
    // A mean over no labels is NaN, so the place with the lowest draw is always predicted.
    int64_t least = 0;
    const auto chance = [&](int64_t t) {
      return random.uniform(3 * (first + static_cast<uint64_t>(t)));
    };
    for (int64_t t = 1; t < request_.context; ++t) {
      if (chance(t) < chance(least)) least = t;
    }
    for (int64_t t = 0; t < request_.context; ++t) {
      const uint64_t n = 3 * (first + static_cast<uint64_t>(t));
      label[t] = kNoLabel;
      if (t != least && chance(t) >= kPredicted) continue;
      label[t] = text[t];
      const double shown = random.uniform(n + 1);
      if (shown < kShownMasked) {
        token[t] = static_cast<int32_t>(characters_);
      } else if (shown < kShownMasked + kShownRandom) {
        token[t] = static_cast<int32_t>(
            static_cast<uint64_t>(random.bits(n + 2)) * static_cast<uint64_t>(characters_) >> 32);
      }
    }
  }

  std::string name_;
  DataRequest request_;
  std::vector<int32_t> tokens_;
  int64_t characters_ = 0, train_length_ = 0;
};

// --- the grammar ---

constexpr int64_t kDefaultCharacters = 400'000, kMinCharacters = 10'000,
                  kMaxCharacters = 100'000'000;

constexpr std::array<std::string_view, 12> kNouns = {"tensor", "kernel",   "layer",  "matrix",
                                                     "number", "gradient", "weight", "batch",
                                                     "scale",  "sum",      "format", "network"};
constexpr std::array<std::string_view, 8> kAdjectives = {"small", "large",  "exact",  "narrow",
                                                         "wide",  "hidden", "sparse", "final"};
constexpr std::array<std::string_view, 8> kVerbs = {"rounds", "holds",  "adds",  "scales",
                                                    "moves",  "clears", "feeds", "follows"};
constexpr std::array<std::string_view, 6> kJoints = {", and",  ", but",  " while",
                                                     " after", "; then", " until"};

template <size_t kCount>
std::string_view pick(const std::array<std::string_view, kCount>& words, Draws& draws) {
  return words[static_cast<size_t>(draws.below(static_cast<int>(kCount)))];
}

void add_noun_phrase(std::string& text, Draws& draws) {
  text += draws.below(3) == 0 ? "a " : "the ";
  if (draws.below(2) == 0) {
    text += pick(kAdjectives, draws);
    text += ' ';
  }
  text += pick(kNouns, draws);
}

void add_clause(std::string& text, Draws& draws) {
  add_noun_phrase(text, draws);
  text += ' ';
  text += pick(kVerbs, draws);
  text += ' ';
  if (draws.below(6) == 0) {
    text += std::to_string(2 + draws.below(98));
    text += ' ';
    text += pick(kNouns, draws);
    text += 's';
  } else {
    add_noun_phrase(text, draws);
  }
}

void add_sentence(std::string& text, Draws& draws) {
  const size_t begin = text.size();
  add_clause(text, draws);
  while (draws.below(3) == 0) {
    text += pick(kJoints, draws);
    text += ' ';
    add_clause(text, draws);
  }
  text[begin] = static_cast<char>(text[begin] - 'a' + 'A');
  text += draws.below(5) == 0 ? ".\n" : ". ";
}

std::unique_ptr<DataSet> open_text(std::string_view argument, const DataRequest& request) {
  return std::make_unique<TextSet>("text:" + std::string(argument),
                                   read_text_file(std::string(argument)), request);
}

std::unique_ptr<DataSet> open_grammar(std::string_view argument, const DataRequest& request) {
  const auto count = static_cast<size_t>(
      parse_example_count("grammar", argument, kDefaultCharacters, kMinCharacters, kMaxCharacters));
  std::string text;
  for (int64_t sentence = 0; text.size() < count; ++sentence) {
    Draws draws(request.seed, sentence);
    add_sentence(text, draws);
  }
  text.resize(count);
  return std::make_unique<TextSet>("grammar", text, request);
}

}  // namespace

DataSource text_data() {
  return {.kind = "text",
          .argument = "FILE",
          .help = "any text file, byte by byte; the last tenth is held out",
          .tasks = {Task::kNextToken, Task::kMaskedToken},
          .open = &open_text};
}

DataSource grammar_data() {
  return {.kind = "grammar",
          .argument = "[COUNT]",
          .help = "sentences of a small grammar, no file needed (400000 characters)",
          .tasks = {Task::kNextToken, Task::kMaskedToken},
          .open = &open_grammar};
}

}  // namespace lockstep
