package org.snapbake

import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.json.JSONArray
import org.json.JSONObject

/** Is thrown behind the last piece of an answer that the context has no room to finish. */
class ContextFullException : Exception("the context is full; start a new conversation")

/**
 * A language model that snapbake built, run by Qualcomm's Genie.
 *
 * [close] it when it is not needed any more: it holds the model's memory.
 */
class SnapbakeGenie private constructor(private val dialog: Long) : AutoCloseable {
    private val oneAtATime = Mutex()

    /**
     * Returns the answer to a prompt that is in the model's chat template, piece by piece.
     *
     * Nothing runs before the flow is collected. Whoever stops collecting stops the model. One
     * answer is made at a time, others wait.
     */
    fun answer(prompt: String): Flow<String> = stream { emit ->
        GenieNative.query(dialog, prompt) { emit(it) }
    }

    /** The same with tokens, by the tokenizer of the model. */
    fun answer(prompt: IntArray): Flow<IntArray> = stream { emit ->
        GenieNative.queryTokens(dialog, prompt) { emit(it) }
    }

    /** Forgets the conversation so far, when no answer is being made. */
    suspend fun reset() = oneAtATime.withLock { GenieNative.reset(dialog) }

    /** Limits the tokens of the answers to come. */
    suspend fun setMaxTokens(count: Int) = oneAtATime.withLock { GenieNative.setMaxTokens(dialog, count) }

    /** Stops the answer that is being made; the model is freed when it has ended. */
    override fun close() = GenieNative.close(dialog)

    private fun <T> stream(query: (emit: (T) -> Boolean) -> Int): Flow<T> = flow {
        oneAtATime.withLock {
            val pieces = callbackFlow {
                // The query blocks its thread, so it cannot be cancelled as coroutines are: the
                // closed channel refuses the next piece, and stop() ends what has no next piece.
                launch(Dispatchers.IO) {
                    val ending = query { trySend(it).isSuccess }
                    close(if (ending == GenieNative.CONTEXT_FULL) ContextFullException() else null)
                }
                awaitClose { GenieNative.stop(dialog) }
            }
            emitAll(pieces.buffer(Channel.UNLIMITED))
        }
    }

    companion object {
        /**
         * Loads the model of a bundle.
         *
         * [bundle] is its folder, as files (not in the APK), and [libraries] that of libGenie.so and
         * the QNN libraries: `applicationInfo.nativeLibraryDir`.
         */
        suspend fun open(bundle: File, libraries: File): SnapbakeGenie =
            withContext(Dispatchers.IO) {
                val config = JSONObject(File(bundle, "genie_config.json").readText())
                makeAbsolute(config, bundle)
                SnapbakeGenie(GenieNative.open(libraries.path, config.toString()))
            }

        /** Makes the paths in a genie_config.json, which are relative to the bundle, absolute. */
        private fun makeAbsolute(config: JSONObject, bundle: File) {
            val dialog = config.getJSONObject("dialog")
            val engine = dialog.getJSONObject("engine")
            val binary = engine.getJSONObject("model").getJSONObject("binary")
            val names = binary.getJSONArray("ctx-bins")
            val paths = (0 until names.length()).map { bundle.resolve(names.getString(it)).path }
            binary.put("ctx-bins", JSONArray(paths))
            val files = listOf(dialog.getJSONObject("tokenizer") to "path", engine.getJSONObject("backend") to "extensions")
            for ((section, key) in files) {
                if (section.has(key)) section.put(key, bundle.resolve(section.getString(key)).path)
            }
        }
    }
}
