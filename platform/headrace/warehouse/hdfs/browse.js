// The page of HDFS: lists folders and shows files through WebHDFS, of the same NameNode. The path is behind the #.
// Every text goes into the page as text: names and contents come from strangers.
"use strict";

const SHOWN_BYTES_MAX = 64 * 1024;
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const STATE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState";
const at = (id) => document.getElementById(id);

function escaped(text) {
  return String(text).replace(CONTROL, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));
}

function made(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = escaped(text);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    bytes /= 1024;
    if (bytes < 1024) return `${bytes.toFixed(1)} ${unit}`;
  }
  return `${(bytes / 1024).toFixed(1)} TiB`;
}

function instant(timeMs) {
  return `${new Date(timeMs).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function count(number) {
  return number.toLocaleString("en-US");
}

function webhdfs(path, operation) {
  return `/webhdfs/v1${path.split("/").map(encodeURIComponent).join("/")}?op=${operation}`;
}

async function asked(url) {
  const response = await fetch(url, { cache: "no-store" });
  if (response.ok) return response.json();
  let message = `HDFS answered ${response.status}`;
  try {
    message = (await response.json()).RemoteException.message.split("\n")[0];
  } catch (error) {
    // Its body is not HDFS's own; the number says enough.
  }
  throw new Error(message);
}

function figures(rows) {
  at("figures").replaceChildren(
    ...rows.map(([name, value]) => {
      const figure = made("div");
      figure.append(made("dt", name), made("dd", value));
      return figure;
    }),
  );
}

async function showState() {
  const state = (await asked(STATE)).beans[0];
  if (state === undefined) throw new Error("the NameNode has not reported its state yet");
  const isWell = state.FSState === "Operational" && state.NumLiveDataNodes > 0;
  at("state").textContent = isWell ? "serving" : `${state.FSState}, ${state.NumLiveDataNodes} DataNodes`;
  at("state").className = `state ${isWell ? "good" : "bad"}`;
  figures([
    ["used by its files", size(state.CapacityUsed)],
    ["free on its disks", size(state.CapacityRemaining)],
    ["files and folders", count(state.FilesTotal)],
    ["blocks", count(state.BlocksTotal)],
    ["live DataNodes", count(state.NumLiveDataNodes)],
  ]);
}

function showPath(path) {
  const links = [made("a", "/", { href: "#/" })];
  const names = path.split("/").filter((name) => name);
  names.forEach((name, index) => {
    const upTo = names.slice(0, index + 1).map(encodeURIComponent).join("/");
    links.push(made("a", name, { href: `#/${upTo}` }), made("span", index + 1 < names.length ? " / " : ""));
  });
  at("path").replaceChildren(...links);
}

function row(path, file) {
  const isFolder = file.type === "DIRECTORY";
  const child = `${path === "/" ? "" : path}/${file.pathSuffix}`;
  const name = made("td", undefined, { "data-label": "name" });
  const href = `#${child.split("/").map(encodeURIComponent).join("/")}`;
  name.append(made("a", file.pathSuffix + (isFolder ? "/" : ""), { href }));
  const line = made("tr");
  line.append(
    name,
    made("td", isFolder ? "" : size(file.length), { "class": "n", "data-label": "size" }),
    made("td", instant(file.modificationTime), { "data-label": "changed" }),
    made("td", `${file.owner}:${file.group}`, { "data-label": "owner" }),
    made("td", file.permission, { "data-label": "permission" }),
  );
  return line;
}

async function showFolder(path, after = "") {
  const start = after ? `&startAfter=${encodeURIComponent(after)}` : "";
  const listing = (await asked(webhdfs(path, `LISTSTATUS_BATCH${start}`))).DirectoryListing;
  const files = listing.partialListing.FileStatuses.FileStatus;
  const head = made("tr");
  for (const title of ["name", "size", "changed", "owner", "permission"]) {
    head.append(made("th", title, title === "size" ? { "class": "n" } : {}));
  }
  const thead = made("thead"), tbody = made("tbody"), table = made("table");
  thead.append(head);
  tbody.append(...files.map((file) => row(path, file)));
  table.append(thead, tbody);
  const shown = [files.length ? table : made("p", "This folder is empty.")];
  if (listing.remainingEntries > 0) {
    const more = made("a", `the next of ${count(listing.remainingEntries)} more`, { href: location.hash || "#/" });
    more.addEventListener("click", (event) => {
      event.preventDefault();
      show(path, files.at(-1).pathSuffix);
    });
    shown.push(more);
  }
  return shown;
}

async function showFile(path, status) {
  const about = made("p", `${size(status.length)}, changed ${instant(status.modificationTime)} · `);
  about.append(made("a", "download", { href: webhdfs(path, "OPEN"), download: "" }));
  if (status.length === 0) return [about];
  const response = await fetch(webhdfs(path, `OPEN&offset=0&length=${SHOWN_BYTES_MAX}`));
  if (!response.ok) throw new Error(`the file cannot be read: HDFS answered ${response.status}`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: status.length <= SHOWN_BYTES_MAX }).decode(bytes);
  } catch (error) {
    text = "\0";
  }
  if (text.startsWith("PAR1")) return [about, made("p", "A Parquet file: Spark, pyarrow and DuckDB read it.")];
  if (text.includes("\0")) return [about, made("p", "This is not text.")];
  const content = made("pre");
  content.textContent = text.split("\n").map(escaped).join("\n");
  const rest = status.length - bytes.length;
  return rest > 0 ? [about, content, made("p", `… and ${size(rest)} more`)] : [about, content];
}

let latest = 0;

async function show(path, after = "") {
  const round = ++latest;
  let parts;
  let problem = "";
  try {
    await showState();
    const status = (await asked(webhdfs(path, "GETFILESTATUS"))).FileStatus;
    parts = status.type === "DIRECTORY" ? await showFolder(path, after) : await showFile(path, status);
  } catch (error) {
    problem = error instanceof TypeError ? "HDFS does not answer" : error.message;
    parts = [];
  }
  if (round !== latest) return;
  showPath(path);
  at("problem").textContent = escaped(problem);
  at("problem").hidden = !problem;
  at("content").replaceChildren(...parts);
  at("time").textContent = `As of ${instant(Date.now())} · `;
}

function here() {
  let path = "/";
  try {
    path = decodeURIComponent(location.hash.slice(1)) || "/";
  } catch (error) {
    // A # that somebody mistyped leads to the root.
  }
  return path.startsWith("/") ? path : "/";
}

addEventListener("hashchange", () => show(here()));
at("refresh").addEventListener("click", (event) => {
  event.preventDefault();
  show(here());
});
show(here());
