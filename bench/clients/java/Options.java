import java.util.HashMap;
import java.util.Map;

/** The command line of a client program: the first word says what it does, then come pairs `--name value`. */
final class Options {
  final String verb;
  private final Map<String, String> values = new HashMap<>();

  Options(String[] arguments) {
    if (arguments.length % 2 != 1) {
      throw new IllegalArgumentException("expected produce or consume, then pairs of --name value");
    }
    verb = arguments[0];
    for (int i = 1; i < arguments.length; i += 2) {
      if (!arguments[i].startsWith("--")) {
        throw new IllegalArgumentException("not an option: " + arguments[i]);
      }
      values.put(arguments[i].substring(2), arguments[i + 1]);
    }
  }

  String text(String name) {
    String value = values.get(name);
    if (value == null) {
      throw new IllegalArgumentException("--" + name + " is missing");
    }
    return value;
  }

  int count(String name) {
    return Integer.parseInt(text(name));
  }

  /** Zero where the option is not given. */
  long countOrZero(String name) {
    return values.containsKey(name) ? Long.parseLong(text(name)) : 0;
  }

  double seconds(String name) {
    return Double.parseDouble(text(name));
  }
}
