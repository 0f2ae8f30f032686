import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.async
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.snapbake.ContextFullException
import org.snapbake.SnapbakeGenie

// Uses SnapbakeGenie as an app does: folder of the bundle, folder of the libraries, and two
// prompts, one short and one that leaves little room. Prints one "name: value" a line.
fun main(words: Array<String>) = runBlocking<Unit> {
    val genie = SnapbakeGenie.open(File(words[0]), File(words[1]))
    val prompt = ids(words[2])
    genie.setMaxTokens(12)
    val whole = tokens(genie.answer(prompt))
    println("tokens: $whole")

    genie.reset()
    println("taken: ${tokens(genie.answer(prompt).take(3))}")

    genie.reset()
    val pieces = mutableListOf<Int>()
    val job = launch {
        genie.answer(prompt).onEach { pieces += it.toList() }.collect { throw CancellationException() }
    }
    job.join()
    println("cancelled: ${job.isCancelled} ${pieces.size < whole.size}")

    genie.reset()
    val running = async { tokens(genie.answer(prompt)) }
    val waiting = launch { genie.answer(prompt).collect {} }
    println("same: ${running.await() == whole}")
    waiting.cancelAndJoin()

    genie.reset()
    genie.setMaxTokens(1000)
    val full = mutableListOf<Int>()
    try {
        genie.answer(ids(words[3])).collect { full += it.toList() }
        println("full: no, ${full.size} tokens")
    } catch (error: ContextFullException) {
        println("full: ${error.message}, ${full.size} tokens")
    }

    genie.close()
    genie.close()
    try {
        genie.answer(prompt).toList()
    } catch (error: IllegalStateException) {
        println("closed: ${error.message}")
    }
}

private suspend fun tokens(answer: Flow<IntArray>): List<Int> = answer.toList().flatMap { it.toList() }

private fun ids(text: String): IntArray = text.split(",").map { it.toInt() }.toIntArray()
