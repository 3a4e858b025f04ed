// See names.h.
#pragma once
#include <gloo/names.h>
