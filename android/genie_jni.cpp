// The native side of org.snapbake.GenieNative.
#include <jni.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "failure.h"
#include "genie_dialog.h"
#include "utf_text.h"

namespace snapbake {
namespace {

// A Java exception is waiting in the thread; whoever throws this leaves it there.
class JavaException : public std::exception {};

// Dialogs by number, so that a number that was closed is noticed and a dialog lives until its last
// call has returned.
class Dialogs {
 public:
  static Dialogs& all() {
    static Dialogs dialogs;
    return dialogs;
  }

  jlong add(std::shared_ptr<GenieDialog> dialog) {
    const std::lock_guard lock(mutex_);
    dialogs_.emplace(++last_, std::move(dialog));
    return last_;
  }

  std::shared_ptr<GenieDialog> get(jlong number) {
    const std::lock_guard lock(mutex_);
    const auto found = dialogs_.find(number);
    if (found == dialogs_.end()) throw Failure("the dialog is closed; open it again");
    return found->second;
  }

  std::shared_ptr<GenieDialog> take(jlong number) {
    const std::lock_guard lock(mutex_);
    const auto found = dialogs_.find(number);
    if (found == dialogs_.end()) return nullptr;
    std::shared_ptr<GenieDialog> dialog = std::move(found->second);
    dialogs_.erase(found);
    return dialog;
  }

 private:
  std::mutex mutex_;
  jlong last_ = 0;
  std::map<jlong, std::shared_ptr<GenieDialog>> dialogs_;
};

void throw_java(JNIEnv* env, const char* type, const std::string& message) {
  // ThrowNew takes JNI's variant of UTF-8, so the message is made as a string of its own.
  Utf8Decoder decoder;
  const std::u16string text = decoder.decode(message) + decoder.finish();
  const jclass kind = env->FindClass(type);
  if (kind == nullptr) return;
  const jmethodID create = env->GetMethodID(kind, "<init>", "(Ljava/lang/String;)V");
  const jstring words = env->NewString(reinterpret_cast<const jchar*>(text.data()),
                                       static_cast<jsize>(text.size()));
  if (create == nullptr || words == nullptr) return;
  const auto error = static_cast<jthrowable>(env->NewObject(kind, create, words));
  if (error != nullptr) env->Throw(error);
}

// Runs the body of a native function; what it throws becomes a Java exception.
template <typename Result, typename Body>
Result guarded(JNIEnv* env, Result otherwise, Body body) {
  try {
    return body();
  } catch (const JavaException&) {
  } catch (const std::bad_alloc&) {
    throw_java(env, "java/lang/OutOfMemoryError", "the native memory is full");
  } catch (const std::exception& error) {
    throw_java(env, "java/lang/IllegalStateException", error.what());
  }
  return otherwise;
}

template <typename Body>
void guarded(JNIEnv* env, Body body) {
  guarded(env, 0, [&] {
    body();
    return 0;
  });
}

std::string utf8_of_java(JNIEnv* env, jstring text, const char* what) {
  if (text == nullptr) throw Failure(std::string(what) + " is null");
  std::u16string characters(static_cast<std::size_t>(env->GetStringLength(text)), u'\0');
  env->GetStringRegion(text, 0, static_cast<jsize>(characters.size()),
                       reinterpret_cast<jchar*>(characters.data()));
  if (characters.find(u'\0') != std::u16string::npos) {
    throw Failure(std::string(what) + " has a NUL character, at which Genie would end it");
  }
  return utf8_of(characters);
}

// Calls a listener's method with an object that only this call needs.
bool tell(JNIEnv* env, jobject listener, jmethodID method, jobject argument) {
  if (argument == nullptr) throw JavaException();  // no memory
  const jboolean more = env->CallBooleanMethod(listener, method, argument);
  env->DeleteLocalRef(argument);
  if (env->ExceptionCheck() == JNI_TRUE) throw JavaException();
  return more == JNI_TRUE;
}

jmethodID listener_method(JNIEnv* env, jobject listener, const char* name, const char* signature) {
  if (listener == nullptr) throw Failure("the listener is null");
  const jclass kind = env->GetObjectClass(listener);
  const jmethodID method = env->GetMethodID(kind, name, signature);
  env->DeleteLocalRef(kind);
  if (method == nullptr) throw JavaException();
  return method;
}

}  // namespace
}  // namespace snapbake

using namespace snapbake;

extern "C" {

JNIEXPORT jlong JNICALL Java_org_snapbake_GenieNative_open(JNIEnv* env, jclass, jstring libraries,
                                                           jstring config) {
  return guarded(env, jlong{0}, [&] {
    const std::string folder = utf8_of_java(env, libraries, "the folder of the libraries");
    // Where the NPU's side looks for its library; whoever has set it knows better.
    if (!folder.empty()) setenv("ADSP_LIBRARY_PATH", folder.c_str(), 0);
    return Dialogs::all().add(
        std::make_shared<GenieDialog>(folder, utf8_of_java(env, config, "the configuration")));
  });
}

JNIEXPORT jint JNICALL Java_org_snapbake_GenieNative_query(JNIEnv* env, jclass, jlong dialog,
                                                           jstring prompt, jobject listener) {
  return guarded(env, jint{-1}, [&] {
    const jmethodID method =
        listener_method(env, listener, "onText", "(Ljava/lang/String;)Z");
    Utf8Decoder decoder;
    const auto hand_over = [&](const std::u16string& text) {
      return text.empty() ||
             tell(env, listener, method,
                  env->NewString(reinterpret_cast<const jchar*>(text.data()),
                                 static_cast<jsize>(text.size())));
    };
    const Ending ending =
        Dialogs::all().get(dialog)->query(utf8_of_java(env, prompt, "the prompt"),
                                          [&](const char* piece) {
                                            return hand_over(decoder.decode(piece));
                                          });
    if (ending != Ending::kStopped) hand_over(decoder.finish());
    return static_cast<jint>(ending);
  });
}

JNIEXPORT jint JNICALL Java_org_snapbake_GenieNative_queryTokens(JNIEnv* env, jclass, jlong dialog,
                                                                 jintArray prompt,
                                                                 jobject listener) {
  return guarded(env, jint{-1}, [&] {
    const jmethodID method = listener_method(env, listener, "onTokens", "([I)Z");
    if (prompt == nullptr) throw Failure("the prompt is null");
    std::vector<std::uint32_t> tokens(static_cast<std::size_t>(env->GetArrayLength(prompt)));
    env->GetIntArrayRegion(prompt, 0, static_cast<jsize>(tokens.size()),
                           reinterpret_cast<jint*>(tokens.data()));
    return static_cast<jint>(Dialogs::all().get(dialog)->query(
        tokens, [&](const std::uint32_t* next, std::size_t count) {
          const jintArray array = env->NewIntArray(static_cast<jsize>(count));
          if (array != nullptr) {
            env->SetIntArrayRegion(array, 0, static_cast<jsize>(count),
                                   reinterpret_cast<const jint*>(next));
          }
          return tell(env, listener, method, array);
        }));
  });
}

JNIEXPORT void JNICALL Java_org_snapbake_GenieNative_stop(JNIEnv* env, jclass, jlong dialog) {
  guarded(env, [&] { Dialogs::all().get(dialog)->stop(); });
}

JNIEXPORT void JNICALL Java_org_snapbake_GenieNative_reset(JNIEnv* env, jclass, jlong dialog) {
  guarded(env, [&] { Dialogs::all().get(dialog)->reset(); });
}

JNIEXPORT void JNICALL Java_org_snapbake_GenieNative_setMaxTokens(JNIEnv* env, jclass,
                                                                  jlong dialog, jint count) {
  guarded(env, [&] {
    if (count <= 0) throw Failure("the limit of tokens is not above 0");
    Dialogs::all().get(dialog)->set_max_tokens(static_cast<std::uint32_t>(count));
  });
}

JNIEXPORT void JNICALL Java_org_snapbake_GenieNative_close(JNIEnv* env, jclass, jlong dialog) {
  guarded(env, [&] {
    if (const auto taken = Dialogs::all().take(dialog)) taken->close();
  });
}

}  // extern "C"
