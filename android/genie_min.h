// The part of Genie's C interface that genie_dialog.cpp calls, declared by ourselves after Genie API
// 1.21 (QAIRT 2.51). genie_dialog.cpp compares the version that the loaded library reports.
#pragma once

#include <cstdarg>
#include <cstdint>

namespace snapbake::genie {

using Handle = void*;
using Status = std::int32_t;  // 0 is success, above 0 a warning, below 0 an error

constexpr std::uint32_t kMajorVersion = 1;

constexpr Status kAborted = 1;
constexpr Status kContextExceeded = 4;

constexpr std::int32_t kWholeQuery = 0;  // GENIE_DIALOG_SENTENCE_COMPLETE
constexpr std::int32_t kAbort = 1;       // GENIE_DIALOG_ACTION_ABORT
constexpr std::int32_t kLogErrors = 1;   // GENIE_LOG_LEVEL_ERROR

using LogCallback = void(Handle log, const char* format, std::int32_t level, std::uint64_t time,
                         va_list arguments);
using TextCallback = void(const char* text, std::int32_t sentence, const void* user);
using TokenCallback = void(const std::uint32_t* tokens, std::uint32_t count,
                           std::int32_t sentence, const void* user);

using GetApiVersion = std::uint32_t();
using LogCreate = Status(Handle config, LogCallback* callback, std::int32_t level, Handle* log);
using LogFree = Status(Handle log);
using ConfigCreateFromJson = Status(const char* json, Handle* config);
using ConfigBindLogger = Status(Handle config, Handle log);
using ConfigFree = Status(Handle config);
using DialogCreate = Status(Handle config, Handle* dialog);
using DialogQuery = Status(Handle dialog, const char* text, std::int32_t sentence,
                           TextCallback* callback, const void* user);
using DialogTokenQuery = Status(Handle dialog, const std::uint32_t* tokens, std::uint32_t count,
                                std::int32_t sentence, TokenCallback* callback, const void* user);
using DialogSignal = Status(Handle dialog, std::int32_t action);
using DialogSetMaxNumTokens = Status(Handle dialog, std::uint32_t count);
using DialogReset = Status(Handle dialog);
using DialogFree = Status(Handle dialog);

}  // namespace snapbake::genie
