import java.util.List;

/** What must hold for the ids that a client drew. */
final class Ids {
    static final int COUNT = 1000;

    private Ids() {}

    /** A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one. */
    static void check(String what, List<Long> ids) {
        if (ids.size() != 3 * COUNT) {
            throw new IllegalStateException(what + ": " + ids.size() + " ids");
        }
        for (int i = 0; i < ids.size(); i++) {
            if (ids.get(i) != i + 1) {
                throw new IllegalStateException(what + ": id " + (i + 1) + " is " + ids.get(i));
            }
        }
    }
}
