//! Sweeps: a scenario file is run with several values of some keys.
//!
//! `[sweep]` names keys by their path and gives each a list of values. Every combination is a
//! [`Point`]: the same file with these values in place of its own. So the checks of a scenario file
//! also apply to each point.
//!
//! ```toml
//! [sweep]
//! "tenant.db.weight" = [100, 300, 1000]
//! "tenant.*.bs" = ["4k", "64k"]    # of all tenants
//! device = ["z-ssd", "p4500"]
//! ```

use std::path::{Path, PathBuf};

use fairq_config::files::read_text;
use fairq_config::refusal::Refusal;
use fairq_config::settings::misread;
use fairq_sim::scenario::Scenario;
use toml_edit::{DocumentMut, Item, TableLike};

use super::table;

/// The most points of a file; a file with more is refused, because it is probably a mistake.
const MOST_POINTS: usize = 100_000;

/// A scenario file.
#[derive(Clone, Debug)]
pub struct Document {
    text: String,
    /// The file's name in messages.
    name: String,
    /// The folder to which paths in the file are relative.
    folder: PathBuf,
}

/// One combination of the values that are swept.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The swept keys and their values at this point, in the file's order.
    pub settings: Vec<(String, toml::Value)>,
    /// The file with these values.
    pub text: String,
    /// The file's name.
    pub file: String,
    /// The point's name in messages.
    pub name: String,
    /// The folder to which paths in the file are relative.
    pub folder: PathBuf,
}

impl Document {
    /// A document from a text, its name in messages, and the folder of its relative paths.
    pub fn new(text: String, name: String, folder: PathBuf) -> Document {
        Document { text, name, folder }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Document, Refusal> {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Document { text: read_text(path)?, name: path.display().to_string(), folder })
    }

    /// A document from values instead of a text, with the keys of the file.
    pub fn of_values(
        values: &toml::Table,
        name: String,
        folder: PathBuf,
    ) -> Result<Document, Refusal> {
        let text = toml::to_string(values)
            .map_err(|error| Refusal::new(format!("{name} cannot be written as TOML: {error}")))?;
        Ok(Document { text, name, folder })
    }

    /// Adds a key to the sweep.
    pub fn sweep(&mut self, key: &str, values: &toml::Value) -> Result<(), Refusal> {
        self.swept()?;
        // The text parses, because `swept` has read it.
        let mut document: DocumentMut = self.text.parse().unwrap_or_default();
        let sweep = document.entry("sweep").or_insert_with(toml_edit::table);
        let told = |what: String| Refusal::new(format!("{}: sweep: {key}: {what}", self.name));
        let keys = sweep.as_table_like_mut().ok_or_else(|| told("it is no table".into()))?;
        if keys.contains_key(key) {
            return Err(told("the file sweeps it, too: leave one out".into()));
        }
        place(keys, key, values).map_err(told)?;
        self.text = document.to_string();
        Ok(())
    }

    /// The points of the sweep; the file itself if nothing is swept. All of them are checked.
    pub fn points(&self) -> Result<Vec<Point>, Refusal> {
        let refuse = |what: String| Refusal::new(format!("{}: {what}", self.name));
        let swept = self.swept()?;
        let count = swept.iter().try_fold(1_usize, |all, (_, values)| {
            all.checked_mul(values.len()).filter(|&all| all <= MOST_POINTS)
        });
        let Some(count) = count else {
            return Err(refuse(format!("sweep: there are more than {MOST_POINTS} combinations")));
        };
        // The text parses, because `swept` has read it.
        let document: DocumentMut = self.text.parse().unwrap_or_default();
        let point = |number: usize| {
            let (mut document, mut settings, mut rest) = (document.clone(), Vec::new(), number);
            // The last key changes first.
            for (key, values) in swept.iter().rev() {
                let value = values[rest % values.len()].clone();
                rest /= values.len();
                set(document.as_table_mut(), key, &value)
                    .map_err(|what| refuse(format!("sweep: {key}: {what}")))?;
                settings.insert(0, (key.clone(), value));
            }
            document.remove("sweep");
            // A file without a sweep keeps its text, so that messages name its own lines.
            let text = if swept.is_empty() { self.text.clone() } else { document.to_string() };
            let (file, folder) = (self.name.clone(), self.folder.clone());
            let point = Point { name: self.named(&settings), settings, text, file, folder };
            // Every point is checked before the first one runs.
            point.scenario()?;
            Ok(point)
        };
        (0..count).map(point).collect()
    }

    /// The swept keys with their values.
    fn swept(&self) -> Result<Vec<(String, Vec<toml::Value>)>, Refusal> {
        let refuse = |what: String| Refusal::new(format!("{}: sweep: {what}", self.name));
        let table: toml::Table =
            toml::from_str(&self.text).map_err(|error| misread(&self.text, &self.name, &error))?;
        let Some(sweep) = table.get("sweep") else { return Ok(Vec::new()) };
        // A `toml::Table` may sort its keys; a `DocumentMut` keeps the file's order.
        let document: DocumentMut = self.text.parse().unwrap_or_default();
        let order = document.get("sweep").and_then(Item::as_table_like);
        let order: Vec<&str> =
            order.into_iter().flat_map(|keys| keys.iter()).map(|key| key.0).collect();
        let cure = "write \"tenant.NAME.KEY\" = [VALUE, VALUE…]";
        let keys = sweep.as_table().ok_or_else(|| refuse(format!("it is a table: {cure}")))?;
        let values = |(key, values): (&String, &toml::Value)| match values.as_array() {
            Some(values) if !values.is_empty() => Ok((key.clone(), values.clone())),
            Some(_) => Err(refuse(format!("{key} has no value: {cure}"))),
            None => Err(refuse(format!("{key} has one value, not a list: {cure}"))),
        };
        let mut swept = keys.iter().map(values).collect::<Result<Vec<_>, _>>()?;
        swept.sort_by_key(|(key, _)| order.iter().position(|known| known == key));
        Ok(swept)
    }

    fn named(&self, settings: &[(String, toml::Value)]) -> String {
        if settings.is_empty() {
            return self.name.clone();
        }
        format!("{} with {}", self.name, shown(settings))
    }
}

impl Point {
    /// Parses the point's text.
    pub fn scenario(&self) -> Result<Scenario, Refusal> {
        table::parse(&self.text, &self.name, &self.folder)
    }
}

/// `tenant.db.weight = 300, device = "p4500"`.
pub(super) fn shown(settings: &[(String, toml::Value)]) -> String {
    let one = |(key, value): &(String, toml::Value)| format!("{key} = {value}");
    settings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Sets a key of a table.
fn place(table: &mut dyn TableLike, key: &str, value: &toml::Value) -> Result<(), String> {
    // The value is parsed as a document of one key, and taken from there.
    let line = format!("value = {value}\n");
    let mut parsed: DocumentMut = line.parse().map_err(|error| format!("{error}"))?;
    table.insert(key, parsed.remove("value").unwrap_or_default());
    Ok(())
}

/// Sets a key of a document by its path.
fn set(document: &mut dyn TableLike, key: &str, value: &toml::Value) -> Result<(), String> {
    let Some(of_tenant) = key.strip_prefix("tenant.") else {
        let mut table = document;
        let mut path: Vec<&str> = key.split('.').collect();
        let last = path.pop().unwrap_or_default();
        for part in path {
            let inner = table.get_mut(part).and_then(Item::as_table_like_mut);
            table = inner.ok_or_else(|| format!("the file has no table `{part}`"))?;
        }
        return place(table, last, value);
    };
    let Some((name, key)) = of_tenant.rsplit_once('.') else {
        return Err("write \"tenant.NAME.KEY\", or \"tenant.*.KEY\" for all".into());
    };
    let tenants = document.get_mut("tenant").and_then(Item::as_array_of_tables_mut);
    let (mut names, mut is_found) = (Vec::new(), false);
    for tenant in tenants.into_iter().flat_map(|tenants| tenants.iter_mut()) {
        let own = tenant.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
        if name == "*" || name == own {
            place(tenant, key, value)?;
            is_found = true;
        }
        names.push(own);
    }
    if is_found {
        return Ok(());
    }
    Err(format!("no [[tenant]] is called `{name}`: there are {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(text: &str) -> Result<Vec<Point>, String> {
        Document::new(text.into(), "my.toml".into(), PathBuf::new())
            .points()
            .map_err(|refusal| refusal.to_string())
    }

    const FILE: &str = "device = \"z-ssd\" # fast\nduration = \"1s\"\n[host]\nmhz = 3000\n\
                        [[tenant]]\nname = \"a.b\"\n[[tenant]]\nname = \"c\"\nweight = 7\n[sweep]\n";

    #[test]
    fn each_combination_is_a_file_with_its_values() {
        let sweep = "\"tenant.a.b.weight\" = [100, 300]\n\"tenant.*.bs\" = [\"4k\", [[\"8k\", 1]]]\n\
                     \"host.mhz\" = [2000]\n";
        let points = points(&format!("{FILE}{sweep}")).unwrap();
        assert_eq!(points.len(), 4);
        let names: Vec<_> = points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(
            names[2],
            "my.toml with tenant.a.b.weight = 300, tenant.*.bs = \"4k\", host.mhz = 2000"
        );
        let [first, .., last] = points.each_scenario();
        assert_eq!([first[0].weight, first[1].weight], [100, 7]);
        assert_eq!([last[0].weight, last[1].weight], [300, 7]);
        assert_eq!((last[0].job.sizes[0], last[1].job.sizes[0]), ((8192, 1), (8192, 1)));
        assert!(points[0].text.contains("# fast") && points[0].text.contains("mhz = 2000"));
        assert!(!points[0].text.contains("sweep"));
    }

    #[test]
    fn keys_are_swept_from_without_too() {
        let text = FILE.strip_suffix("[sweep]\n").unwrap();
        let table: toml::Table = toml::from_str(text).unwrap();
        let values = |text: &str| text.parse::<toml::Value>().unwrap();
        for mut document in [
            Document::new(text.into(), "my.toml".into(), PathBuf::new()),
            Document::of_values(&table, "my.toml".into(), PathBuf::new()).unwrap(),
        ] {
            document.sweep("tenant.c.weight", &values("[1, 2]")).unwrap();
            document.sweep("host.mhz", &values("[2000]")).unwrap();
            let points = document.points().unwrap();
            let names: Vec<_> = points.iter().map(|point| point.name.as_str()).collect();
            assert_eq!(names[1], "my.toml with tenant.c.weight = 2, host.mhz = 2000");
            let again = document.sweep("host.mhz", &values("[1]")).unwrap_err().to_string();
            assert_eq!(again, "my.toml: sweep: host.mhz: the file sweeps it, too: leave one out");
        }
    }

    trait Each {
        fn each_scenario(&self) -> [Vec<fairq_sim::Tenant>; 4];
    }

    impl Each for Vec<Point> {
        fn each_scenario(&self) -> [Vec<fairq_sim::Tenant>; 4] {
            std::array::from_fn(|index| self[index].scenario().unwrap().tenants)
        }
    }

    #[test]
    fn a_file_that_sweeps_nothing_is_one_point() {
        let text = FILE.strip_suffix("[sweep]\n").unwrap();
        let points = points(text).unwrap();
        assert_eq!((points.len(), points[0].name.as_str()), (1, "my.toml"));
        assert_eq!(points[0].text, text);
    }

    #[test]
    fn what_cannot_be_swept_is_refused_with_its_cure() {
        let error = |sweep: &str| points(&format!("{FILE}{sweep}")).unwrap_err();
        assert_eq!(
            error("\"tenant.x.weight\" = [1]"),
            "my.toml: sweep: tenant.x.weight: no [[tenant]] is called `x`: there are a.b, c"
        );
        assert!(error("device = \"p4500\"").contains("device has one value, not a list: write"));
        assert!(error("device = []").contains("device has no value"));
        assert!(error("\"disk.size\" = [1]").contains("the file has no table `disk`"));
        assert!(error("tenant = [1]").contains("my.toml with tenant = 1"), "as any other key");
        // The message is that of a file, with the line that the point would have.
        let unknown = error("\"tenant.c.wait\" = [1]");
        assert!(
            unknown.contains("with tenant.c.wait = 1:") && unknown.contains("wait"),
            "{unknown}"
        );
        let illegal = error("\"tenant.c.weight\" = [5, 20000]");
        assert!(illegal.contains("with tenant.c.weight = 20000:"), "{illegal}");
        let many = vec!["1"; 400].join(",");
        let error =
            error(&format!("\"tenant.c.weight\" = [{many}]\n\"tenant.c.depth\" = [{many}]"));
        assert!(error.ends_with("more than 100000 combinations"), "{error}");
    }
}
