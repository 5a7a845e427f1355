// The site table as columns under /sites, and back.
#pragma once

#include <hdf5.h>

#include "src/graph/site.h"

namespace lockstep {

void write_sites(hid_t root, const SiteTable& table);  // Throws: hdf5::Error
SiteTable read_sites(hid_t root);                      // Throws: hdf5::Error

}  // namespace lockstep
