// Serves a live view of a run to a browser on this machine.
// Listens on 127.0.0.1 alone and serves four fixed paths, no files. Requests that name another host
// are refused, so that a web page cannot reach it by a name of its own that it has resolve to
// 127.0.0.1 (DNS rebinding).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// Until Ctrl-C. `port` 0: a free one. Prints the address, and when the run ends. Returns: the exit
// code. Throws: InputError if the port is in use.
int serve_live(const std::string& run_path, uint16_t port);

// "127.0.0.1" or "localhost", alone or with this port.
bool is_own_host(std::string_view host, int port);

}  // namespace lockstep
