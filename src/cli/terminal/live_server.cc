// Routes, headers, and the loop that waits for Ctrl-C.
#include "src/cli/terminal/live_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "reports/live/live_view.h"
#include "src/cli/command.h"
#include "src/cli/terminal/stop_signal.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr const char* kAddress = "127.0.0.1";
constexpr int kForbidden = 403, kNotAllowed = 405;
constexpr auto kPollEvery = std::chrono::milliseconds(100);
constexpr auto kNewsEvery = std::chrono::seconds(1);
// A request that is sent by halves holds a thread for as long as it is waited for.
constexpr size_t kServingThreads = 128;
constexpr time_t kReadSeconds = 2;
// The page may load what this server serves and nothing else.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

// Not SO_REUSEPORT, the library's default: a second server could take the same port unnoticed.
void set_socket_options(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

void set_headers(httplib::Response& response) {
  response.set_header("Content-Security-Policy", kPolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cache-Control", "no-store");
}

void refuse(httplib::Response& response, int status, const std::string& why) {
  response.status = status;
  set_headers(response);
  response.set_content(why + "\n", "text/plain; charset=utf-8");
}

void add_file(httplib::Server& server, const char* path, std::string_view name, const char* type) {
  server.Get(path, [text = std::string(live_file(name)), type](const httplib::Request&,
                                                               httplib::Response& response) {
    set_headers(response);
    response.set_content(text, type);
  });
}

void add_routes(httplib::Server& server, LiveView& view, const int& port) {
  using Handled = httplib::Server::HandlerResponse;
  server.set_pre_routing_handler(
      [&port](const httplib::Request& request, httplib::Response& response) {
        const bool is_own = request.get_header_value_count("Host") == 1 &&
                            is_own_host(request.get_header_value("Host"), port);
        if (!is_own) {
          refuse(response, kForbidden, fmt::format("This is http://{}:{}/ alone.", kAddress, port));
          return Handled::Handled;
        }
        if (request.method != "GET") {
          response.set_header("Allow", "GET");
          refuse(response, kNotAllowed, "Only GET.");
          return Handled::Handled;
        }
        return Handled::Unhandled;
      });
  add_file(server, "/", "live.html", "text/html; charset=utf-8");
  add_file(server, "/live.css", "live.css", "text/css; charset=utf-8");
  add_file(server, "/live.js", "live.js", "text/javascript; charset=utf-8");
  server.Get("/snapshot.json", [&view](const httplib::Request&, httplib::Response& response) {
    set_headers(response);
    response.set_content(view.news().json, "application/json");
  });
}

// Serves in a thread of its own, which ends with this object, whatever is thrown meanwhile.
class Serving {
 public:
  explicit Serving(httplib::Server& server) : server_(server) {
    while (!server_.is_running() && !has_ended_) std::this_thread::sleep_for(kPollEvery);
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    server_.stop();
    thread_.join();
  }

 private:
  httplib::Server& server_;
  std::atomic<bool> has_ended_ = false;
  std::thread thread_{[this] {
    server_.listen_after_bind();
    has_ended_ = true;
  }};
};

// Says in the terminal, too, when the run ends, and again if it went on and ended once more.
void watch(LiveView& view, const std::atomic<bool>& stop) {
  std::string said;
  const auto look = [&] {
    const LiveNews news = view.news();
    const bool is_over = news.state == LiveState::kStopped || news.state == LiveState::kFinished;
    const std::string line = is_over ? news.sentence : "";
    if (line != said && !line.empty()) {
      print_line(line);
      std::fflush(stdout);
    }
    said = line;
  };
  auto next = std::chrono::steady_clock::now();
  while (!stop) {
    if (std::chrono::steady_clock::now() >= next) {
      look();
      next = std::chrono::steady_clock::now() + kNewsEvery;
    }
    std::this_thread::sleep_for(kPollEvery);
  }
  look();  // the run may have ended since
}

}  // namespace

bool is_own_host(std::string_view host, int port) {
  const std::string with_port = fmt::format(":{}", port);
  for (const std::string_view name : {std::string_view(kAddress), std::string_view("localhost")}) {
    if (host == name || host == std::string(name) + with_port) return true;
  }
  return false;
}

int serve_live(const std::string& run_path, uint16_t port) {
  const std::atomic<bool>& stop = catch_stop_signals();
  LiveView view(run_path);
  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kServingThreads); };
  server.set_read_timeout(kReadSeconds);
  server.set_keep_alive_max_count(1);  // an idle browser must not hold a thread
  server.set_socket_options(set_socket_options);
  int bound = port;
  add_routes(server, view, bound);
  if (port == 0) {
    bound = server.bind_to_any_port(kAddress);
    if (bound <= 0) throw InputError(fmt::format("{}: no port is free", kAddress));
  } else if (!server.bind_to_port(kAddress, port)) {
    throw InputError(fmt::format("--port {}: cannot be used", port),
                     "another program may listen there; without --port a free one is taken");
  }
  const Serving serving(server);
  print_line(
      fmt::format("Live view of {}: http://{}:{}/ (Ctrl-C ends it)", run_path, kAddress, bound));
  std::fflush(stdout);
  watch(view, stop);
  return kExitFine;
}

}  // namespace lockstep
