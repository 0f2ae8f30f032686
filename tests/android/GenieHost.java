import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.snapbake.GenieNative;

/**
 * Calls GenieNative as an app does, on the Java machine of this computer.
 *
 * <p>Arguments: the folder of the libraries, a genie_config.json, a scenario, and what it needs.
 * What a scenario found is printed as one "name: value" a line.
 */
public final class GenieHost {
    private static final int MOST = 12;

    private final long dialog;

    private GenieHost(long dialog) {
        this.dialog = dialog;
    }

    public static void main(String[] words) throws Exception {
        String config = Files.readString(Path.of(words[1]));
        GenieHost host;
        try {
            host = new GenieHost(GenieNative.open(words[0], config));
        } catch (IllegalStateException error) {
            say("refused", error.getMessage());
            return;
        }
        GenieNative.setMaxTokens(host.dialog, MOST);
        switch (words[2]) {
            case "tokens" -> host.tokens(ids(words[3]));
            case "text" -> host.text(Path.of(words[3]), Path.of(words[4]));
            case "stops" -> host.stops(ids(words[3]));
            case "mistakes" -> host.mistakes(ids(words[3]));
            case "closes" -> host.closes(ids(words[3]));
            default -> throw new IllegalArgumentException(words[2]);
        }
        GenieNative.close(host.dialog);
        say("end", "reached");
    }

    private void tokens(int[] prompt) {
        List<Integer> answer = new ArrayList<>();
        say("ending", GenieNative.queryTokens(dialog, prompt, next -> collect(next, answer)));
        say("tokens", answer);
    }

    /** Reads a prompt and writes its answer, both UTF-8; the pieces must be whole characters. */
    private void text(Path prompt, Path answer) throws Exception {
        StringBuilder text = new StringBuilder();
        say("ending", GenieNative.query(dialog, Files.readString(prompt), piece -> {
            say("whole", StandardCharsets.UTF_16.newEncoder().canEncode(piece));
            text.append(piece);
            return true;
        }));
        Files.writeString(answer, text);
    }

    /** Stops by the listener and from another thread; what follows must be as in a new dialog. */
    private void stops(int[] prompt) throws Exception {
        List<Integer> whole = new ArrayList<>();
        GenieNative.queryTokens(dialog, prompt, next -> collect(next, whole));
        GenieNative.reset(dialog);

        List<Integer> refused = new ArrayList<>();
        say("refused piece", GenieNative.queryTokens(dialog, prompt, next -> {
            collect(next, refused);
            return refused.size() < 3;
        }));
        say("pieces before it", refused.size());
        GenieNative.reset(dialog);

        CountDownLatch begun = new CountDownLatch(1);
        CountDownLatch stopped = new CountDownLatch(1);
        List<Integer> cut = new ArrayList<>();
        Thread other = new Thread(() -> {
            try {
                begun.await();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            GenieNative.stop(dialog);
            stopped.countDown();
        });
        other.start();
        say("other thread", GenieNative.queryTokens(dialog, prompt, next -> {
            begun.countDown();
            try {
                stopped.await();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            return collect(next, cut);
        }));
        other.join();
        say("pieces of it", cut.size());
        GenieNative.reset(dialog);

        GenieNative.stop(dialog);  // without a query: nothing
        List<Integer> again = new ArrayList<>();
        say("again", GenieNative.queryTokens(dialog, prompt, next -> collect(next, again)));
        say("same", again.equals(whole) && !whole.isEmpty());
    }

    private void mistakes(int[] prompt) {
        try {
            GenieNative.queryTokens(dialog, prompt, next -> {
                throw new ArithmeticException("the listener's own \uD83D\uDE00");
            });
        } catch (ArithmeticException error) {
            say("listener", error.getMessage());
        }
        say("null prompt", refusal(() -> GenieNative.query(dialog, null, piece -> true)));
        say("null listener", refusal(() -> GenieNative.query(dialog, "a", null)));
        say("NUL", refusal(() -> GenieNative.query(dialog, "a\0b", piece -> true)));
        say("limit", refusal(() -> GenieNative.setMaxTokens(dialog, 0)));
        say("never opened", refusal(() -> GenieNative.reset(987)));
        GenieNative.reset(dialog);
        tokens(prompt);
    }

    /** Closes while another thread's query runs. */
    private void closes(int[] prompt) throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        List<Integer> endings = new ArrayList<>();
        Thread query = new Thread(() -> endings.add(GenieNative.queryTokens(dialog, prompt, next -> {
            begun.countDown();
            return true;
        })));
        query.start();
        begun.await();
        GenieNative.close(dialog);
        query.join();
        say("endings", endings);
        say("closed", refusal(() -> GenieNative.query(dialog, "a", piece -> true)));
    }

    private static boolean collect(int[] next, List<Integer> answer) {
        Arrays.stream(next).forEach(answer::add);
        return true;
    }

    private static String refusal(Runnable call) {
        try {
            call.run();
        } catch (IllegalStateException error) {
            return error.getMessage();
        }
        return "none";
    }

    private static int[] ids(String text) {
        return Arrays.stream(text.split(",")).mapToInt(Integer::parseInt).toArray();
    }

    private static void say(String name, Object value) {
        System.out.println(name + ": " + value);
    }
}
