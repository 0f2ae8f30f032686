package org.snapbake;

/**
 * The functions of libsnapbake_genie.so. {@link SnapbakeGenie} is what an app uses.
 *
 * <p>A dialog is a number that {@link #open} returns. Errors are IllegalStateExceptions with a
 * sentence; so is the use of a dialog that was closed.
 */
public final class GenieNative {
    /** The answer ended by itself or at its limit of tokens. */
    public static final int COMPLETE = 0;

    /** The listener or {@link #stop} ended it. */
    public static final int STOPPED = 1;

    /** There is no room in the context for the rest. */
    public static final int CONTEXT_FULL = 2;

    static {
        System.loadLibrary("snapbake_genie");
    }

    private GenieNative() {}

    /** Is called on the thread of the query; false stops the answer. */
    public interface TextListener {
        /** Gets the next characters, whole ones. */
        boolean onText(String text);
    }

    /** Is called on the thread of the query; false stops the answer. */
    public interface TokenListener {
        /** Gets the next tokens. */
        boolean onTokens(int[] tokens);
    }

    /**
     * Loads a model, which takes seconds.
     *
     * @param libraries folder of libGenie.so and the QNN libraries, in an app its nativeLibraryDir
     * @param config text of a genie_config.json, its paths absolute
     */
    public static native long open(String libraries, String config);

    /** Continues a prompt and blocks to the end of the answer; returns how it ended. */
    public static native int query(long dialog, String prompt, TextListener listener);

    /** The same with tokens, by the tokenizer of the model. */
    public static native int queryTokens(long dialog, int[] prompt, TokenListener listener);

    /** Stops the query that runs, from any thread; without one it does nothing. */
    public static native void stop(long dialog);

    /** Forgets the conversation so far. */
    public static native void reset(long dialog);

    /** Limits the tokens of an answer. */
    public static native void setMaxTokens(long dialog, int count);

    /** Stops the query that runs and all that wait; the model is freed when they have ended. */
    public static native void close(long dialog);
}
